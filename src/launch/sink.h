// The launcher's own standard output or error, written without ever blocking the launcher.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// Bytes wait in a queue until the reader takes them. A slow reader fills the queue, `full` then tells the
// launcher to stop reading from the workers, and so they wait, as with any pipe; meanwhile the launcher
// still sees signals and deaths. The descriptor stays in blocking mode: others share it.
class Sink {
 public:
  explicit Sink(int fd);

  void add(std::string_view bytes) {
    if (!broken()) queue_.append(bytes);
  }
  void pump();  // writes what the reader takes now

  int fd() const { return fd_; }
  bool waiting() const { return sent_ < queue_.size(); }  // for the descriptor to become writable
  bool full() const { return queue_.size() - sent_ > kMostQueued; }
  bool broken() const { return error_ != 0; }  // it can't be written; everything is dropped
  int error() const { return error_; }         // why: EPIPE when the reader is gone
  bool coloured() const { return coloured_; }

 private:
  static constexpr std::size_t kMostQueued = std::size_t{1} << 20;

  int fd_;
  bool pollable_;  // a pipe, socket or terminal; files never wait
  bool coloured_;
  int error_ = 0;
  std::string queue_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep::launcher
