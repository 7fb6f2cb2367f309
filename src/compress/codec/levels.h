// Stochastic levels as they lie in a payload: what QSGD and TernGrad have in common.
//
// At most 512 elements are at most 8 groups of 64. A group's codes are `bits` planes of a bit an element,
// eight bytes each; of a last group that is not whole as many bytes as its elements need. So n elements take
// bits * ⌈n / 8⌉ bytes, and groups lie one after the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/codec/codec.h"
#include "compress/codec/kernels.h"

namespace lockstep {

class LevelPlanes {
 public:
  explicit LevelPlanes(int levels);  // 1 to 127: codes 0 to 2 * levels

  int levels() const { return levels_; }
  std::size_t bytes(std::size_t elements) const {
    return static_cast<std::size_t>(bits_) * ((elements + 7) / 8);
  }

  // `values` has zeros behind its elements, to whole groups; `first` is the element of the tensor that it
  // begins with.
  void encode(const float* values, std::size_t elements, float inverse,
              const codec_kernel::ElementRandom& random, std::uint64_t first, std::byte* planes) const;
  // `values` has room for whole groups. MismatchError where a code is beyond the levels.
  void decode(const std::byte* planes, std::size_t elements, float step, float* values, Into into,
              const Codec& codec) const;

 private:
  int levels_;
  int bits_;
};

}  // namespace lockstep
