// Runs the real `lockstep` program and looks at what it does.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

// How long an event is waited for before a test fails.
inline constexpr std::chrono::seconds kPatience{10};

struct Outcome {
  int status = -1;  // exit status; 128 + signal when a signal killed it; -1 when it ran past the limit
  std::string out;
  std::string err;
  double seconds = 0;
};

// One running `lockstep`, with pipes at its output. Its children carry a mark in their environment.
class Program {
 public:
  // `before_exec` runs in its process first; what it does lasts.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {},
                   const std::function<void()>& before_exec = {});
  ~Program();  // kills what is left
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Reads until standard output holds `text`; false after 10 s.
  bool wait_for(const std::string& text) { return wait_for(text, outcome_.out, kPatience); }
  // The same for standard error.
  bool wait_for_error(const std::string& text, std::chrono::milliseconds limit = kPatience) {
    return wait_for(text, outcome_.err, limit);
  }
  // Of the worker of `rank`, which must write "pid PID of RANK." as `echo pid $$ of $RANK.` does; -1 after 10
  // s.
  pid_t worker(int rank);
  // Waits, without reading, until its standard output (1) or error (2) takes no more; false after 10 s.
  bool wait_until_stuck(int stream = 1) const;
  // Reads to the end and waits, at most `limit`.
  Outcome finish(std::chrono::milliseconds limit = std::chrono::seconds(20));
  // Processes other than the program itself that carry its mark.
  std::vector<pid_t> descendants() const;
  // Waits until there are none; what is left after 2 s.
  std::vector<pid_t> leftovers() const;
  // Waits until none but the guardian is left; false after 10 s.
  bool wait_for_workers_end() const;

 private:
  bool wait_for(const std::string& text, const std::string& stream, std::chrono::milliseconds limit);
  bool read_some(std::chrono::milliseconds limit);  // false when both pipes are at their end

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string mark_;
  Outcome outcome_;
  std::chrono::steady_clock::time_point begin_;
};

Outcome run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

// Waits until `holds`; false after 10 s.
bool wait_until(const std::function<bool()>& holds);

// Waits until the process has ended and nobody has reaped it yet; false after 10 s.
bool wait_for_zombie(pid_t pid);

// For scripts of workers: notes the shell's number in `file`; waits until the one that is noted there has
// ended, whether its parent knows or not.
std::string note_self(const std::string& file);
std::string wait_for_end(const std::string& file);

// Lines of `text`, without their ends.
std::vector<std::string> lines_of(const std::string& text);

// A new empty folder, removed with all in it at the end of the test program's scope.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::test
