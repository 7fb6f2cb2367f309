// The grid of every collective over TCP, plain and in TLS, and over shared memory or TCP inside × TCP across.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/grid.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"

namespace lockstep::testing {
namespace {

using net::Security;

// What each rank compares on average where the ranks are fewest, rounded down: with more of them it is more.
constexpr std::size_t kSmallChecks = 2'600;
constexpr std::size_t kLargeChecks = 280;
constexpr std::size_t kEveryMemoryChecks = 16'000;

void expect_grid(std::vector<Group> groups, const GridOptions& options, std::size_t fewest) {
  fewest *= groups.size();
  std::mutex mutex;
  std::size_t checks = 0;
  on_threads(std::move(groups), [&](const Group& group) {
    const GridResult result = run_grid(group, options);
    const std::lock_guard lock(mutex);
    checks += result.checks;
    EXPECT_EQ(result.problem, "");
  });
  EXPECT_GE(checks, fewest);
}

const GridOptions kSmall{.every_memory = false};
const GridOptions kLarge{
    .counts = {(1 << 20) + 3}, .dtypes = {DType::f32, DType::bf16}, .every_memory = false};

class WireGrid : public ::testing::TestWithParam<int> {};

TEST_P(WireGrid, Plaintext) {
  expect_grid(tcp_groups(GetParam(), Security::plaintext), kSmall, kSmallChecks);
}
TEST_P(WireGrid, Tls) { expect_grid(tcp_groups(GetParam(), Security::tls), kSmall, kSmallChecks); }

INSTANTIATE_TEST_SUITE_P(Ranks, WireGrid, ::testing::Values(1, 2, 3, 4, 7, 8),
                         ::testing::PrintToStringParamName());

TEST(WireGridLarge, Plaintext) { expect_grid(tcp_groups(3, Security::plaintext), kLarge, kLargeChecks); }
TEST(WireGridLarge, Tls) { expect_grid(tcp_groups(2, Security::tls), kLarge, kLargeChecks); }

// Aligned, unequal, one rank on a node, and ranks that alternate between nodes.
TEST(NodeGrid, TwoByTwo) {
  expect_grid(node_groups({0, 0, 1, 1}, Security::plaintext), {}, kEveryMemoryChecks);
}
TEST(NodeGrid, FourByTwo) {
  expect_grid(node_groups({0, 0, 1, 1, 2, 2, 3, 3}, Security::tls), kSmall, kSmallChecks);
}
TEST(NodeGrid, Unequal) {
  expect_grid(node_groups({0, 0, 0, 0, 1, 1, 1}, Security::plaintext), kSmall, kSmallChecks);
}
TEST(NodeGrid, LastIsSmaller) {
  expect_grid(node_groups({0, 0, 1}, Security::plaintext), kSmall, kSmallChecks);
}
TEST(NodeGrid, Alternating) {
  expect_grid(node_groups({0, 1, 0, 1}, Security::plaintext), kSmall, kSmallChecks);
}
// Without shared memory inside; by-node is there for equal nodes.
TEST(NodeGrid, TcpInside) {
  expect_grid(node_groups({0, 0, 1, 1}, Security::plaintext, kWirePatience, "tcp+tcp"), kSmall, kSmallChecks);
}
TEST(NodeGrid, TcpInsideAlternating) {
  expect_grid(node_groups({0, 1, 1, 0}, Security::plaintext, kWirePatience, "tcp+tcp"), kSmall, kSmallChecks);
}
TEST(NodeGrid, TcpInsideUnequal) {
  expect_grid(node_groups({0, 0, 1}, Security::plaintext, kWirePatience, "tcp+tcp"), kSmall, kSmallChecks);
}
TEST(NodeGrid, Large) { expect_grid(node_groups({0, 0, 1, 1}, Security::plaintext), kLarge, kLargeChecks); }

}  // namespace
}  // namespace lockstep::testing
