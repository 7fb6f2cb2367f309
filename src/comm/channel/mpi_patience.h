// How a rank waits on MPI, which can only be asked again: a little spinning, then giving its core to whoever
// wants it, then short sleeps. MPI moves data only while somebody asks, so a wait during which many bytes
// move must not fall asleep too early.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

#include "lockstep/base/clock.h"

namespace lockstep::mpi {

class Patience {
 public:
  // `bytes` that move meanwhile.
  Patience(std::chrono::nanoseconds spin, std::size_t bytes)
      : spin_ns_(spin.count()),
        awake_ns_(spin_ns_ + kYield.count() + static_cast<std::int64_t>(bytes) * kNsPerByte),
        since_ns_(now_ns()),
        look_ns_(since_ns_ + kFirstLook.count()) {}

  // Something moved: begin anew.
  void moved() {
    since_ns_ = now_ns();
    look_ns_ = since_ns_ + kFirstLook.count();
    nap_ = kShortestNap;
  }

  // Whether spinning was not enough.
  bool was_long() const { return long_; }

  // One turn of waiting. True when it is time to look at the clock and for what peers say: after a
  // millisecond, then every ten.
  bool wait() {
    const std::int64_t now = now_ns();
    if (now < since_ns_ + spin_ns_) {
      for (int i = 0; i < 8; ++i) relax();
    } else if (now < since_ns_ + awake_ns_) {
      long_ = true;
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(nap_);
      nap_ = std::min(nap_ * 2, kLongestNap);
    }
    if (now < look_ns_) return false;
    look_ns_ = now + kLaterLook.count();
    return true;
  }

 private:
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  static constexpr std::chrono::nanoseconds kYield = std::chrono::milliseconds(1);
  static constexpr std::int64_t kNsPerByte = 4;  // a slow link: 250 MB/s
  static constexpr std::chrono::nanoseconds kFirstLook = std::chrono::milliseconds(1);
  static constexpr std::chrono::nanoseconds kLaterLook = std::chrono::milliseconds(10);
  static constexpr std::chrono::nanoseconds kShortestNap = std::chrono::microseconds(20);
  static constexpr std::chrono::nanoseconds kLongestNap = std::chrono::microseconds(500);

  std::int64_t spin_ns_;
  std::int64_t awake_ns_;
  std::int64_t since_ns_;
  std::int64_t look_ns_;
  std::chrono::nanoseconds nap_ = kShortestNap;
  bool long_ = false;
};

}  // namespace lockstep::mpi
