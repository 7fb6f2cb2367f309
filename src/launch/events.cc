#include "launch/events.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

Events::Events() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
}

void Events::watch(int fd, unsigned when, About about, std::size_t index) {
  epoll_event event{};
  event.events = when;
  event.data.u64 = std::uint64_t{static_cast<unsigned>(about)} << 32 | index;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl", errno);
}

void Events::forget(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

Events::Batch Events::next(int timeout_ms) const {
  epoll_event events[kBatch];
  const int count = ::epoll_wait(epoll_.get(), events, kBatch, timeout_ms);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  Batch batch;
  for (; batch.count < count; ++batch.count) {
    const std::uint64_t what = events[batch.count].data.u64;
    batch.about[batch.count] = static_cast<About>(what >> 32);
    batch.index[batch.count] = static_cast<std::size_t>(what & 0xffffffff);
  }
  return batch;
}

}  // namespace lockstep::launcher
