// How long another agent was not heard of. Only time in which this one itself ran counts: after it was held
// up (a loaded machine, a stop and a continue) what the other said meanwhile has to be read first.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "lockstep/base/clock.h"

namespace lockstep::launcher {

class Quiet {
 public:
  void heard(Clock::time_point now) {
    so_far_ = {};
    last_ = now;
  }
  // To be called about once a second, when everything that came has been read.
  void pass(Clock::time_point now) {
    if (last_) so_far_ += std::min<Clock::duration>(now - *last_, kMostAtOnce);
    last_ = now;
  }
  std::chrono::seconds so_far() const { return std::chrono::floor<std::chrono::seconds>(so_far_); }

 private:
  static constexpr std::chrono::milliseconds kMostAtOnce{1500};
  Clock::duration so_far_{};
  std::optional<Clock::time_point> last_;
};

}  // namespace lockstep::launcher
