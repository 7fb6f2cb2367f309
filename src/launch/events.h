// The one epoll set in which a launcher waits.
#pragma once

#include <cstddef>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

// What an event is about: a kind, and which one of it.
enum class About : unsigned { worker, stream, signal, sink, agents };

class Events {
 public:
  Events();

  // `when`: EPOLLIN, EPOLLOUT. A descriptor that is closed leaves by itself.
  void watch(int fd, unsigned when, About about, std::size_t index = 0);
  void forget(int fd);

  // Waits for at most so long (-1: for ever) and calls handle(about, index) for each, in the order in which
  // they became ready: ends of workers are seen in order.
  template <class Handle>
  void wait(int timeout_ms, Handle&& handle) {
    const Batch batch = next(timeout_ms);
    for (int i = 0; i < batch.count; ++i) handle(batch.about[i], batch.index[i]);
  }

 private:
  static constexpr int kBatch = 64;
  struct Batch {
    int count = 0;
    About about[kBatch];
    std::size_t index[kBatch];
  };
  Batch next(int timeout_ms) const;

  UniqueFd epoll_;
};

}  // namespace lockstep::launcher
