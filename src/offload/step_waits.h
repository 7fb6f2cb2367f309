// What steps waited for a disk, or for state that is elsewhere: the median of the last ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

class StepWaits {
 public:
  // What was waited up to here is no step's.
  void begin(std::int64_t waited_ns) { before_ns_ = waited_ns; }
  // `waited_ns`: in all, so far.
  void end_step(std::int64_t waited_ns) { add(waited_ns - std::exchange(before_ns_, waited_ns)); }
  // A step that waited so long.
  void add(std::int64_t ns) {
    waits_ms_.resize(std::min(steps_ + 1, kRemembered));
    waits_ms_[steps_++ % kRemembered] = static_cast<double>(ns) / 1e6;
  }
  // nullopt: there was no step.
  std::optional<double> median_ms() const {
    std::vector<double> waits = waits_ms_;
    std::ranges::sort(waits);
    return waits.empty() ? std::nullopt : std::optional(waits[waits.size() / 2]);
  }

 private:
  static constexpr std::size_t kRemembered = 1000;
  std::int64_t before_ns_ = 0;
  std::vector<double> waits_ms_;  // one in the place of another
  std::size_t steps_ = 0;
};

}  // namespace lockstep
