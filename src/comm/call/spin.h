// How long a waiting rank polls before it sleeps. A wait polls for the full time as long as that pays off;
// after one that did not, the next few poll only briefly, twice as many each time, then the full time is
// tried again: ranks that share their cores with others, or wait for a slow link, do not burn them.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

class SpinBudget {
 public:
  void set_most(std::chrono::nanoseconds most) { most_ = most; }
  bool any() const { return most_.count() > 0; }
  std::chrono::nanoseconds now() const { return brief_waits_ > 0 ? most_ / 32 : most_; }
  void paid_off() { brief_waits_ = 0, next_brief_waits_ = 1; }
  void was_wasted() {
    if (brief_waits_ > 0) {
      --brief_waits_;
    } else {
      brief_waits_ = next_brief_waits_;
      next_brief_waits_ = std::min(16, next_brief_waits_ * 2);
    }
  }

 private:
  std::chrono::nanoseconds most_{0};
  int brief_waits_ = 0;       // to come
  int next_brief_waits_ = 1;  // after the next full time wasted
};

}  // namespace lockstep
