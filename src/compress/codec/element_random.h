// Random numbers by (seed, step, subtree, parameter, element): the same whoever draws them.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/fnv.h"
#include "lockstep/base/random.h"

namespace lockstep::compress {

class ElementRandom {
 public:
  // `subtree` -1: what all subtrees have in common.
  ElementRandom(std::uint64_t seed, std::int64_t step, int subtree, std::string_view parameter)
      : base_(mix_bits(
            stream_seed(seed, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(subtree)) ^
            fnv1a(parameter))) {}

  std::uint64_t bits(std::uint64_t element) const {
    return mix_bits(base_ + (element + 1) * 0x9e3779b97f4a7c15u);
  }
  // In [0, 1), 24 bits.
  float uniform(std::uint64_t element) const { return static_cast<float>(bits(element) >> 40) * 0x1p-24f; }

 private:
  std::uint64_t base_;
};

}  // namespace lockstep::compress
