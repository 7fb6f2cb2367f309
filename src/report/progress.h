// What a long command is doing, on standard error: one line that changes on a terminal, plain lines
// elsewhere.
#pragma once

#include <string>

namespace lockstep {

bool is_terminal(int fd);
// Colours on that descriptor? Not when it is no terminal, nor when NO_COLOR is set.
bool wants_colours(int fd);

class Progress {
 public:
  Progress() : terminal_(is_terminal(2)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(const std::string& text);
  // Takes the line away, before anything else is printed.
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace lockstep
