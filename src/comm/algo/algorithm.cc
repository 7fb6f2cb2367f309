#include "comm/algo/algorithm.h"

#include <array>
#include <cstdint>

namespace lockstep {

std::byte* Scratch::take(std::size_t bytes) {
  constexpr std::size_t align = 64;
  if (memory_.size() < bytes + align) memory_ = std::vector<std::byte>(bytes + align);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  return memory_.data() + (align - address % align) % align;
}

std::span<const Algorithm* const> all_algorithms() {
  static const std::array<const Algorithm*, 9> all = {
      &kEager, &kDirect, &kTree, &kRing, &kHalvingDoubling, &kHierarchical, &kPairwise, &kDoubling, &kPages};
  return all;
}

const Algorithm* find_algorithm(std::string_view name) {
  for (const Algorithm* algorithm : all_algorithms())
    if (algorithm->name() == name) return algorithm;
  return nullptr;
}

}  // namespace lockstep
