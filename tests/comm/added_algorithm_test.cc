// An algorithm that is added turns up everywhere by itself: star_algorithm.cc is linked, and nothing else
// says so. The programs `bench` and `tune` are in tests/cli/added_algorithm_test.py.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/algo/algorithm.h"
#include "comm/expect_error.h"
#include "comm/grid.h"
#include "comm/star_algorithm.h"
#include "comm/thread_ranks.h"
#include "comm/tune/selector.h"
#include "comm/tune/trials.h"
#include "comm/world/group_impl.h"
#include "comm/world/tcp_world.h"
#include "lockstep/base/knobs.h"

namespace lockstep::testing {
namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string> for_all_reduce(const Group& group) {
  return group.algorithms(Collective::all_reduce);
}

TEST(AddedAlgorithm, RunsInTheGridOfSharedMemory) {
  const int before = star_runs;
  on_threads(thread_groups(3), [](const Group& g) {
    EXPECT_TRUE(has(for_all_reduce(g), "star"));
    EXPECT_TRUE(has(for_all_reduce(g), "shared-star"));
    EXPECT_FALSE(has(g.algorithms(Collective::broadcast), "star"));
    const GridResult result = run_grid(g, {.counts = {0, 17, 4096}, .dtypes = {DType::f32, DType::bf16}});
    EXPECT_EQ(result.problem, "");
  });
  EXPECT_GT(star_runs, before);
}

TEST(AddedAlgorithm, RunsInTheGridAcrossWiresWhenItNeedsNoMemory) {
  const int before = star_runs;
  std::vector<Group> groups;
  for (auto& engine : tcp_threads({0, 1}, net::Security::plaintext, std::chrono::seconds(20)))
    groups.push_back(make_group(std::move(engine), "world", std::chrono::seconds(20)));
  on_threads(groups, [](const Group& g) {
    EXPECT_TRUE(has(for_all_reduce(g), "star"));
    EXPECT_FALSE(has(for_all_reduce(g), "shared-star"));
    const GridResult result = run_grid(g, {.counts = {0, 17}, .dtypes = {DType::f32}, .every_memory = false});
    EXPECT_EQ(result.problem, "");
  });
  EXPECT_GT(star_runs, before);
}

TEST(AddedAlgorithm, IsInTheTableOfCosts) {
  const std::vector<int> nodes(4, 0);
  const CallShape shape{.what = Collective::all_reduce, .ranks = 4, .bytes = 4096, .nodes = nodes};
  const Algorithm* const star = find_algorithm("star");
  ASSERT_NE(star, nullptr);
  Selector table;
  const auto rows = table.table(shape, Order::canonical);
  const auto row = std::ranges::find(rows, star, &Candidate::algorithm);
  ASSERT_NE(row, rows.end());
  EXPECT_GT(row->predicted_s, 0);
  EXPECT_NE(table.choose(shape, Order::canonical), star);
  table.add_measurement(shape, *star, 1e-9);
  EXPECT_EQ(table.choose(shape, Order::canonical), star);
  EXPECT_EQ(Selector("star").choose(shape, Order::canonical), star);
  expect_error<UsageError>([] { Selector("stra"); }, {"'stra'", "star", "tree"});
}

TEST(AddedAlgorithm, IsTimedWithTheOthersThatShareMemory) {
  ::setenv("LOCKSTEP_ARENA", "64M", 1);  // a few sizes will do
  const std::vector<Group> groups = thread_groups(2);
  ::unsetenv("LOCKSTEP_ARENA");
  on_threads(groups, [](const Group& g) {
    Selector table;
    run_trials(engine_of(g), table);
    const CallShape shape{
        .what = Collective::all_reduce, .ranks = 2, .bytes = 4096, .reachable = true, .nodes = g.nodes()};
    for (const Candidate& row : table.table(shape, Order::canonical))
      if (row.algorithm->name() == "shared-star") {
        EXPECT_GT(row.measured_s, 0);
        return;
      }
    ADD_FAILURE() << "shared-star is not in the table";
  });
}

TEST(AddedAlgorithm, ANameIsGivenOnce) {
  expect_error<UsageError>([] { add_algorithm(*find_algorithm("star")); }, {"'star'"});
  expect_error<UsageError>([] { add_algorithm(*find_algorithm("tree")); }, {"'tree'"});
}

}  // namespace
}  // namespace lockstep::testing
