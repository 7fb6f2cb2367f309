// Text for a reader who may have stopped reading: a pipe that nobody empties, a terminal after Ctrl-S.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// Waits for the reader, as any program does. But once this process was told to stop only for a second in all,
// and what is not taken then is dropped: whoever waits for a reader sees no signal, and what is still to be
// saved would wait as well.
class Printer {
 public:
  // Asked while nobody reads. By default nothing tells this process to stop.
  void give_up_when(std::function<bool()> told_to_stop) { told_to_stop_ = std::move(told_to_stop); }
  void print(std::FILE* to, std::string_view text);

 private:
  bool wait_for_reader(int fd);

  std::function<bool()> told_to_stop_;
  int waits_left_ = 10;  // of a tenth of a second each, once told
};

// Whether `fd` takes a little text just now.
bool takes_text(int fd);

// Whether SIGINT, SIGTERM, SIGHUP or SIGQUIT has come and is held back, for a descriptor of signals to read.
bool stop_is_pending();

// Flushes standard output. Why a part of it is lost, for a message; empty when nothing is.
std::string lost_output();

}  // namespace lockstep
