#include "net/arrivals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep::net {

Arrivals::Arrivals() : ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!ready_) throw SystemError("can't make an eventfd", errno);
}

bool Arrivals::full() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() >= kMost;
}

void Arrivals::add(Gate::Arrival arrival) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(arrival));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(ready_.get(), &one, sizeof one);  // can't overflow
  }
  changed_.notify_all();
}

Gate::Arrival Arrivals::take(const std::string* hello, Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Gate::Arrival& one) {
      return hello == nullptr || one.hello == *hello;
    });
    if (found != waiting_.end()) {
      Gate::Arrival arrival = std::move(*found);
      waiting_.erase(found);
      std::uint64_t count = 0;
      if (waiting_.empty()) {
        [[maybe_unused]] const ssize_t got = ::read(ready_.get(), &count, sizeof count);
      }
      return arrival;
    }
    if (deadline.passed()) return {};
    changed_.wait_for(lock, deadline.left());
  }
}

}  // namespace lockstep::net
