// Where a reduction over channels keeps its partial results: the output itself when it has the
// accumulator's type, scratch otherwise (16-bit floats add up in f32).
#pragma once

#include <cstring>

#include "comm/algo/algorithm.h"
#include "comm/algo/team.h"

namespace lockstep {

class Accumulator {
 public:
  // Starts with the rank's own input. `home` is where the result will go, or null when this rank has no
  // output of its own.
  Accumulator(Stage& stage, std::byte* home) : stage_(stage), reduction_(stage.reduction()), home_(home) {
    element_ = size_of(accumulator_of(reduction_.dtype));
    const bool widens = accumulator_of(reduction_.dtype) != reduction_.dtype;
    data_ = home == nullptr || widens ? stage.scratch.take(stage.call.count * element_) : home;
    if (data_ != stage.in()) kernel::widen(data_, stage.in(), stage.call.count, reduction_.dtype);
  }

  std::byte* data() const { return data_; }
  std::size_t element() const { return element_; }
  const kernel::Reduction& reduction() const { return reduction_; }
  std::span<std::byte> bytes(Range range) const { return slice(data_, range, element_); }

  // Rounds and divides `range` into its home. The divisor may have come with the peers' bytes.
  void finish(Range range) const {
    kernel::finish(home_ + range.begin * size_of(reduction_.dtype), data_ + range.begin * element_,
                   range.count(), stage_.reduction());
  }

 private:
  Stage& stage_;
  kernel::Reduction reduction_;
  std::byte* home_;
  std::byte* data_ = nullptr;
  std::size_t element_ = 0;
};

}  // namespace lockstep
