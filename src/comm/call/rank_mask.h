// A set of ranks of one group as plain bytes: it lies in shared memory and travels over wires.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// The most ranks that a group may have: all of them can be named in an error. Four launchers' worth.
inline constexpr int kMostGroupRanks = 4096;

struct RankMask {
  static constexpr std::size_t kWords = kMostGroupRanks / 64;
  std::uint64_t words[kWords];

  // Numbers that no rank can have are in no mask.
  static bool fits(int rank) { return rank >= 0 && rank < kMostGroupRanks; }
  static std::size_t word(int rank) { return static_cast<std::size_t>(rank) / 64; }
  static std::uint64_t bit(int rank) { return std::uint64_t{1} << (rank % 64); }

  void add(int rank) {
    if (fits(rank)) words[word(rank)] |= bit(rank);
  }
  bool has(int rank) const { return fits(rank) && (words[word(rank)] & bit(rank)) != 0; }
  std::vector<int> ranks() const {  // rising
    std::vector<int> all;
    for (std::size_t w = 0; w < kWords; ++w)
      if (words[w] != 0)
        for (int b = 0; b < 64; ++b)
          if ((words[w] >> b & 1U) != 0) all.push_back(static_cast<int>(w * 64) + b);
    return all;
  }
};

inline RankMask mask_of(const std::vector<int>& ranks) {
  RankMask mask{};
  for (const int rank : ranks) mask.add(rank);
  return mask;
}

// Throws UsageError for a size that no group can have: "a group of 5000 ranks; accepted: at most 4096".
void check_group_size(int ranks);

}  // namespace lockstep
