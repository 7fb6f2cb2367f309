// The order of one rank's calls on a group. A call takes its number when it is made and runs when all before
// it are over, whichever threads they are on. Where nobody waits that is two atomic additions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lockstep {

class Turns {
 public:
  using Number = std::uint64_t;

  Number take() noexcept { return next_.fetch_add(1); }

  void await(Number mine) {
    if (now_.load() == mine) return;
    std::unique_lock lock(mutex_);
    ++waiting_;
    passed_.wait(lock, [&] { return now_.load() == mine; });
    --waiting_;
  }

  // Ends the turn that is on. Of a wait that is beginning either it sees the next turn or this sees it:
  // all four operations are in one order.
  void pass() {
    now_.fetch_add(1);
    if (waiting_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }
    passed_.notify_all();
  }

 private:
  std::atomic<Number> next_ = 0;
  std::atomic<Number> now_ = 0;
  std::atomic<int> waiting_ = 0;
  std::mutex mutex_;
  std::condition_variable passed_;
};

// A turn from the call to the end of the scope.
class Turn {
 public:
  explicit Turn(Turns& turns) : turns_(turns) { turns_.await(turns_.take()); }
  ~Turn() { turns_.pass(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Turns& turns_;
};

}  // namespace lockstep
