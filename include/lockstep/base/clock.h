// Time: one steady clock and a deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lockstep {

using Clock = std::chrono::steady_clock;

// Nanoseconds of the steady clock; comparable between processes of one machine.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// A point in time after which waiting stops.
class Deadline {
 public:
  // A span that ends beyond the clock's range never passes.
  static Deadline after(std::chrono::nanoseconds span) {
    const auto now = Clock::now();
    return span > Clock::time_point::max() - now ? never() : Deadline(now + span);
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
  // Time left, never negative; a day when there is no deadline.
  std::chrono::nanoseconds left() const {
    if (at_ == Clock::time_point::max()) return std::chrono::hours(24);
    return std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(at_ - Clock::now()));
  }

  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace lockstep
