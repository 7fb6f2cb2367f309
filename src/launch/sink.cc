#include "launch/sink.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/environment.h"

namespace lockstep::launcher {
namespace {

bool can_wait(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(fd) == 1;
}

}  // namespace

Sink::Sink(int fd)
    : fd_(fd), pollable_(can_wait(fd)), coloured_(::isatty(fd) == 1 && !read_filled_variable("NO_COLOR")) {}

void Sink::pump() {
  while (waiting()) {
    std::size_t bytes = queue_.size() - sent_;
    if (pollable_) {
      // A writable pipe has room for PIPE_BUF bytes: writing no more than that doesn't block.
      pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) <= 0) break;
      bytes = std::min<std::size_t>(bytes, PIPE_BUF);
    }
    const ssize_t written = ::write(fd_, queue_.data() + sent_, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      error_ = errno;
      queue_.clear();
      sent_ = 0;
      return;
    }
    sent_ += static_cast<std::size_t>(written);
  }
  if (!waiting()) {
    queue_.clear();
    sent_ = 0;
  } else if (sent_ > kMostQueued) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace lockstep::launcher
