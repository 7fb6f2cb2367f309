#include "optim/crew.h"

#include <algorithm>

namespace lockstep {

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::run(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work) {
  const std::size_t wanted = std::min(threads, count);
  if (wanted <= 1) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  while (helpers_.size() + 1 < wanted) helpers_.emplace_back(&Crew::help, this, helpers_.size());
  std::unique_lock lock(mutex_);
  work_ = &work;
  std::fegetenv(&environment_);
  count_ = count;
  next_ = 0;
  invited_ = wanted - 1;
  wake_.notify_all();
  take_parts(lock);
  done_.wait(lock, [&] { return running_ == 0; });
}

// Parts are large (tens of microseconds), so one mutex is enough.
void Crew::take_parts(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t part = next_++;
    ++running_;
    lock.unlock();
    (*work_)(part);
    lock.lock();
    --running_;
  }
}

void Crew::help(std::size_t number) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || (next_ < count_ && number < invited_); });
    if (stopping_) return;
    std::fesetenv(&environment_);
    take_parts(lock);
    if (running_ == 0) done_.notify_one();
  }
}

}  // namespace lockstep
