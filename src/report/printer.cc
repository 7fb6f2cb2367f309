#include "report/printer.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

namespace lockstep {
namespace {

constexpr int kWait_ms = 100;

// Also true for what can't be waited for: writing then says what is wrong.
bool becomes_writable(int fd, int wait_ms) {
  pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
  const int count = ::poll(&ready, 1, wait_ms);
  return count > 0 || (count < 0 && errno != EINTR);
}

}  // namespace

void Printer::print(std::FILE* to, std::string_view text) {
  while (!text.empty() && wait_for_reader(::fileno(to))) {
    // A pipe that can be written has room for so much.
    const std::string_view piece = text.substr(0, PIPE_BUF);
    std::fwrite(piece.data(), 1, piece.size(), to);
    std::fflush(to);
    text.remove_prefix(piece.size());
  }
}

bool Printer::wait_for_reader(int fd) {
  while (!becomes_writable(fd, waits_left_ > 0 ? kWait_ms : 0)) {
    if (!told_to_stop_ || !told_to_stop_()) continue;
    if (waits_left_ == 0) return false;
    --waits_left_;
  }
  return true;
}

bool takes_text(int fd) { return becomes_writable(fd, 0); }

bool stop_is_pending() {
  sigset_t pending;
  ::sigemptyset(&pending);
  ::sigpending(&pending);
  const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  return std::ranges::any_of(stops, [&](int signal) { return ::sigismember(&pending, signal) == 1; });
}

std::string lost_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::cout.flush().good() && std::ferror(stdout) == 0) return "";
  return std::string("standard output can't be written, and a part of it is lost") +
         (errno != 0 ? std::string(": ") + std::strerror(errno) : "; is its disk full?");
}

}  // namespace lockstep
