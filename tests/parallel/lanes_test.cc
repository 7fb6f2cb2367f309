#include "lockstep/comm/lanes.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The sum over leaves as text, so that its order shows.
std::string tree(const std::vector<std::string>& leaves) {
  if (leaves.empty()) return "";
  if (leaves.size() == 1) return leaves[0];
  std::size_t left = 1;
  while (left * 2 < leaves.size()) left *= 2;
  const std::string a = tree({leaves.begin(), leaves.begin() + static_cast<std::ptrdiff_t>(left)});
  const std::string b = tree({leaves.begin() + static_cast<std::ptrdiff_t>(left), leaves.end()});
  return a.empty() ? b : b.empty() ? a : "(" + a + " " + b + ")";
}

TEST(Lanes, WorkersCarrySubtreesOfTheSameTree) {
  for (int lanes = 1; lanes <= 33; ++lanes) {
    std::vector<std::string> leaves;
    for (int l = 0; l < lanes; ++l) leaves.push_back(std::to_string(l));
    const std::string whole = tree(leaves);
    for (int workers = 1; workers <= lanes; ++workers) {
      std::vector<std::string> parts;
      int next = 0;
      for (int w = 0; w < workers; ++w) {
        const LaneRange range = lanes_of(w, workers, lanes);
        if (range.count > 0) {
          EXPECT_EQ(range.first, next);
        }
        EXPECT_LE(range.count, range.span);
        const auto at = leaves.begin() + std::min(range.first, lanes);
        parts.push_back(tree({at, at + range.count}));
        next += range.count;
      }
      EXPECT_EQ(next, lanes);
      EXPECT_EQ(tree(parts), whole) << workers << " workers";
    }
  }
}

TEST(Lanes, AsTheHeaderSays) {
  EXPECT_EQ(lanes_of(0, 3, 8), (LaneRange{0, 2, 2}));
  EXPECT_EQ(lanes_of(1, 3, 8), (LaneRange{2, 2, 2}));
  EXPECT_EQ(lanes_of(2, 3, 8), (LaneRange{4, 4, 4}));
}

TEST(Lanes, RefusesWhatDoesNotFit) {
  EXPECT_THROW(lanes_of(0, 9, 8), UsageError);
  EXPECT_THROW(lanes_of(0, 1, 0), UsageError);
  EXPECT_THROW(lanes_of(2, 2, 8), UsageError);
}

}  // namespace
}  // namespace lockstep
