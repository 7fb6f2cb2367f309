// Where a reduction over channels keeps its partial results: in the output itself, or in scratch on a rank
// that has none.
#pragma once

#include <cstring>

#include "comm/algo/algorithm.h"
#include "comm/algo/team.h"

namespace lockstep {

class Accumulator {
 public:
  // Starts with the rank's own input. `home` is where the result will go, or null when this rank has no
  // output of its own.
  Accumulator(Stage& stage, std::byte* home) : stage_(stage), reduction_(stage.reduction()) {
    const std::size_t bytes = stage.call.count * element();
    data_ = home == nullptr ? stage.scratch.take(bytes) : home;
    if (data_ != stage.in() && bytes > 0) std::memcpy(data_, stage.in(), bytes);
  }

  std::byte* data() const { return data_; }
  std::size_t element() const { return stage_.element(); }
  const kernel::Reduction& reduction() const { return reduction_; }
  std::span<std::byte> bytes(Range range) const { return slice(data_, range, element()); }

  // Divides `range`, if it is an average. The divisor may have come with the peers' bytes.
  void finish(Range range) const {
    std::byte* const at = data_ + range.begin * element();
    kernel::finish(at, at, range.count(), stage_.reduction());
  }

 private:
  Stage& stage_;
  kernel::Reduction reduction_;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep
