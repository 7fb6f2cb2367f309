// The grid with threads as ranks. grid_worker.cc is the same with processes.
#include "comm/grid.h"

#include <gtest/gtest.h>

#include <mutex>

#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

// What each rank compares on average where the ranks are fewest, rounded down: with more of them it is more.
constexpr std::size_t kSmallChecks = 24'000;
constexpr std::size_t kLargeChecks = 1'200;
constexpr std::size_t kNodeChecks = 15'000;

void expect_grid(int ranks, const GridOptions& options, std::size_t fewest, std::vector<int> nodes = {}) {
  std::mutex mutex;
  std::size_t checks = 0;
  on_threads(thread_groups(ranks, {.timeout = std::chrono::minutes(2)}, std::move(nodes)),
             [&](const Group& group) {
               const GridResult result = run_grid(group, options);
               const std::lock_guard lock(mutex);
               checks += result.checks;
               EXPECT_EQ(result.problem, "");
             });
  EXPECT_GE(checks, fewest * static_cast<std::size_t>(ranks));
}

class GridOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(GridOfRanks, SmallSizesEveryMemory) { expect_grid(GetParam(), {}, kSmallChecks); }

TEST_P(GridOfRanks, LargeSize) {
  expect_grid(GetParam(), {.counts = {(1 << 20) + 3}, .every_memory = false}, kLargeChecks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GridOfRanks, ::testing::Values(1, 2, 3, 4, 7, 8),
                         ::testing::PrintToStringParamName());

TEST(GridOfNodes, AlignedNodesGiveTheSameBits) {
  expect_grid(8, {.counts = {17, 4099}}, kNodeChecks, {0, 0, 0, 0, 1, 1, 1, 1});
  expect_grid(7, {.counts = {17, 4099}}, kNodeChecks, {0, 0, 1, 1, 2, 2, 3});
}

}  // namespace
}  // namespace lockstep::testing
