#include "comm/algo/algorithm.h"

#include <cstdint>
#include <string>

#include "comm/algo/builtin.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// In a function, so that it is there before the first constant that adds one; and never destroyed, as those
// that it lists: at exit() a group's thread may be choosing.
std::vector<const Algorithm*>& known() {
  static auto* const all =
      new std::vector<const Algorithm*>{&kEager,        &kDirect,   &kTree,     &kRing,  &kHalvingDoubling,
                                        &kHierarchical, &kPairwise, &kDoubling, &kPages, &kByNode};
  return *all;
}

}  // namespace

std::byte* Scratch::take(std::size_t bytes) {
  constexpr std::size_t align = 64;
  if (memory_.size() < bytes + align) memory_ = std::vector<std::byte>(bytes + align);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  return memory_.data() + (align - address % align) % align;
}

double wire_seconds(const Cost& cost, const Wires& wires, int ranks) {
  if (cost.wire_s > 0) return cost.wire_s;
  double empty = 0;
  double full = 0;
  constexpr double bytes = 1 << 20;
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b) {
      if (a == b) continue;
      empty = std::max(empty, wires.seconds(a, b, 0));
      full = std::max(full, wires.seconds(a, b, bytes));
    }
  return cost.messages * empty + cost.sent_bytes / 2 * (full - empty) / bytes;
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
