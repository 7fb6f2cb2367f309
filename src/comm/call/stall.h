// A wait that lasts is said: once after LOCKSTEP_WARN_AFTER_S, then again each time it has lasted twice as
// long.
//
// Only waits that have slept already ask, a few times a second, so a call whose peers come soon pays nothing.
// One rank of a group speaks for all that wait: the lowest of them, as far as it knows of the others. All
// would say the same, and the lowest is the one that everybody finds without asking.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/base/clock.h"

namespace lockstep {

class Stall {
 public:
  // Zero: nothing is ever said. `now`: nanoseconds of the clock by which waits begin.
  explicit Stall(std::chrono::milliseconds warn_after, std::function<std::int64_t()> now = now_ns)
      : warn_after_(warn_after), now_(std::move(now)) {}

  // When the file `sign` appears (observe/stop_sign.h) while a wait has lasted a second: calls `dump`, once.
  void on_stop(std::filesystem::path sign, std::function<void()> dump);
  // For a wait that began at `since_ns` and goes on. May be called as often as one likes.
  void look_for_stop(std::int64_t since_ns);

  // For a wait that began at `since_ns` and goes on: is it time for a line?
  bool due(std::int64_t since_ns);

  struct Sight {
    std::string who;    // "rank 0"
    std::string whom;   // "rank 1 (last seen in operation 6)"
    std::string where;  // "all_reduce(f32 × 4, sum), operation 7 of group world"
  };
  // The line, at warn level. After due().
  void say(const Sight& sight);

 private:
  std::chrono::nanoseconds warn_after_;
  std::function<std::int64_t()> now_;
  std::int64_t since_ns_ = 0;  // of the wait that is going on
  std::int64_t next_ns_ = 0;   // when a line is due
  std::filesystem::path sign_;
  std::function<void()> dump_;  // empty: nobody asked for it, or it is done
  std::int64_t look_ns_ = 0;    // when to look for the sign again
};

}  // namespace lockstep
