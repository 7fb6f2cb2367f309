// Routes that follow links: what is chosen, that the choice changes no sum, and that figures are agreed.
#include "comm/tune/links.h"

#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <set>

#include "comm/algo/builtin.h"
#include "comm/algo/routes.h"
#include "comm/expect_error.h"
#include "comm/grid.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"

namespace lockstep::testing {
namespace {

// All links alike but those listed, which take `slow` seconds for any message.
Way alike_but(std::vector<std::pair<int, int>> slow_ones, double slow) {
  return [slow_ones = std::move(slow_ones), slow](int a, int b) {
    for (const auto& [x, y] : slow_ones)
      if ((a == x && b == y) || (a == y && b == x)) return slow;
    return 1.0;
  };
}

std::vector<Link> table_of(int nodes, std::pair<int, int> slow) {
  std::vector<Link> table;
  for (int a = 0; a < nodes; ++a)
    for (int b = 0; b < nodes; ++b) {
      const bool is_slow = std::minmax(a, b) == std::minmax(slow.first, slow.second);
      table.push_back({.latency_s = 1e-4, .s_per_byte = a == b ? 0 : is_slow ? 40e-9 : 8e-9});
    }
  return table;
}

TEST(Routes, PlainOnesAreTheBinomialTreeAndTheRanksInOrder) {
  const Routes routes = plain_routes(7);
  EXPECT_EQ(routes.ring, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(routes.tree.size(), 6U);
  for (const Merge& merge : routes.tree) {
    EXPECT_LT(merge.into, merge.from);
    EXPECT_TRUE(merge.into_is_left);
  }
  EXPECT_EQ(routes.tree.back().into, 0);
  EXPECT_EQ(routes.tree.back().from, 4);
}

TEST(Routes, TheRingGoesRoundASlowLink) {
  const Way way = alike_but({{1, 2}}, 5);
  const std::vector<int> ring = best_ring(4, way);
  EXPECT_EQ(slowest_link(ring, way), 1);
  EXPECT_EQ(slowest_link({0, 1, 2, 3}, way), 5);
  EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), 4U);
}

TEST(Routes, ARingThatCannotAvoidItKeepsIt) {
  const Way way = alike_but({{0, 1}, {0, 2}}, 5);
  EXPECT_EQ(slowest_link(best_ring(3, way), way), 5);
}

TEST(Routes, TheTreeHoldsSumsWhereTheyAreReachedFast) {
  // Between the pairs 0 1 and 2 3 only the way from 3 to 1 is fast.
  const Way way = alike_but({{0, 2}, {0, 3}, {1, 2}}, 9);
  const auto tree = best_tree(4, way);
  EXPECT_EQ(tree_time(tree, 4, way), 2);
  EXPECT_EQ(tree_time(plain_routes(4).tree, 4, way), 10);
  EXPECT_EQ(std::set<int>({tree.back().into, tree.back().from}), (std::set<int>{1, 3}));
}

TEST(Links, ReasonsNameTheLinkAndTheOrder) {
  const Links links({0, 1, 2, 3}, table_of(4, {1, 2}));
  std::vector<std::string> reasons;
  const Routes routes = links.routes(&reasons);
  ASSERT_FALSE(reasons.empty());
  EXPECT_NE(reasons[0].find("instead of 0 1 2 3"), std::string::npos) << reasons[0];
  EXPECT_NE(reasons[0].find("between rank 1 and rank 2"), std::string::npos) << reasons[0];
  EXPECT_NE(reasons[0].find("25 MB/s"), std::string::npos) << reasons[0];
  std::vector<std::string> none;
  Links({0, 1, 2, 3}, table_of(4, {0, 0})).routes(&none);
  EXPECT_TRUE(none.empty());
}

TEST(Links, ChangeIsAFactorEitherWay) {
  const Links before({0, 1, 2, 3}, table_of(4, {0, 0}));
  const Links after({0, 1, 2, 3}, table_of(4, {1, 2}));
  EXPECT_GT(after.largest_change(before), 4);
  EXPECT_GT(before.largest_change(after), 4);
  EXPECT_EQ(before.largest_change(before), 1);
}

TEST(Links, ChoicesFollowThem) {
  // Over a long way a small message takes the fewest steps, over a slow link a large one the fewest bytes.
  auto links = std::make_shared<Links>(std::vector<int>{0, 1, 2, 3}, table_of(4, {1, 2}));
  auto routes = std::make_shared<Routes>(links->routes(nullptr));
  Selector selector;
  selector.set_links(links, routes);
  const std::vector<int> nodes = {0, 1, 2, 3};
  CallShape shape{.ranks = 4, .bytes = 64, .messages_only = true, .nodes = nodes};
  EXPECT_EQ(selector.choose(shape, Order::canonical), &kDoubling);
  shape.bytes = std::size_t{64} << 20;
  EXPECT_EQ(selector.choose(shape, Order::canonical), &kHalvingDoubling);  // its pairs are 01 23 02 13
  for (const Candidate& row : selector.table(shape, Order::any))
    EXPECT_GT(row.predicted_s, 0) << row.algorithm->name();
}

// Any route, the same results: the grid compares canonical algorithms bit for bit.
TEST(Links, AdaptedRoutesKeepEverySum) {
  for (const auto& slow : {std::pair(1, 2), std::pair(0, 4), std::pair(2, 4)}) {
    std::mutex mutex;
    std::vector<Group> groups = tcp_groups(5, net::Security::plaintext);
    for (const Group& group : groups)
      dynamic_cast<ChannelEngine&>(engine_of(group))
          .set_links(std::make_shared<Links>(std::vector<int>{0, 1, 2, 3, 4}, table_of(5, slow)));
    on_threads(std::move(groups), [&](const Group& group) {
      const GridResult result =
          run_grid(group, {.counts = {1, 4099}, .dtypes = {DType::f32, DType::bf16}, .every_memory = false});
      const std::lock_guard lock(mutex);
      EXPECT_EQ(result.problem, "");
      EXPECT_GT(result.checks, 100U);
    });
  }
}

// As long as they are told, whatever that is: a rank may be stopped for longer than any time of ours.
TEST(Links, OneThatDoesNotComeToMeasureThemIsWaitedForAsLongAsCallsAre) {
  std::latch told(1);
  on_threads(tcp_groups(2, net::Security::plaintext), [&](const Group& group) {
    if (group.rank() == 1) return told.wait();
    auto& engine = dynamic_cast<ChannelEngine&>(engine_of(group));
    expect_error<TimeoutError>([&] { engine.measure_links(std::chrono::milliseconds(100)); },
                               {"no answer within 0.1 s on rank 0; missing: rank 1"});
    told.count_down();
  });
}

TEST(Links, AreMeasuredAndTheSameOnEveryRank) {
  std::mutex mutex;
  std::set<std::string> tables;
  on_threads(tcp_groups(5, net::Security::plaintext), [&](const Group& group) {
    auto& engine = dynamic_cast<ChannelEngine&>(engine_of(group));
    engine.measure_links(kWirePatience);
    for (int r = 0; r < 5; ++r) {
      if (r == group.rank()) continue;
      EXPECT_GT(engine.links()->between(r, group.rank()).latency_s, 0);
      EXPECT_GT(engine.links()->between(r, group.rank()).s_per_byte, 0);
    }
    const std::lock_guard lock(mutex);
    tables.insert(engine.selector()->topology());
  });
  EXPECT_EQ(tables.size(), 1U);
}

}  // namespace
}  // namespace lockstep::testing
