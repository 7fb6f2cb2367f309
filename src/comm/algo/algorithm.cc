#include "comm/algo/algorithm.h"

#include <cstdint>
#include <string>

#include "comm/algo/builtin.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// In a function, so that it is there before the first constant that adds one.
std::vector<const Algorithm*>& known() {
  static std::vector<const Algorithm*> all = {&kEager,           &kDirect,       &kTree,     &kRing,
                                              &kHalvingDoubling, &kHierarchical, &kPairwise, &kDoubling,
                                              &kPages,           &kByNode};
  return all;
}

}  // namespace

std::byte* Scratch::take(std::size_t bytes) {
  constexpr std::size_t align = 64;
  if (memory_.size() < bytes + align) memory_ = std::vector<std::byte>(bytes + align);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  return memory_.data() + (align - address % align) % align;
}

std::span<const Algorithm* const> all_algorithms() { return known(); }

bool add_algorithm(const Algorithm& algorithm) {
  if (find_algorithm(algorithm.name()) != nullptr)
    throw UsageError("there is an algorithm '" + std::string(algorithm.name()) + "' already");
  known().push_back(&algorithm);
  return true;
}

const Algorithm* find_algorithm(std::string_view name) {
  for (const Algorithm* algorithm : all_algorithms())
    if (algorithm->name() == name) return algorithm;
  return nullptr;
}

}  // namespace lockstep
