// What an algorithm of two levels is for: a node's bytes cross the wire once.
#include "comm/bytes_sent.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t kBytes = 4 << 20;  // of all slices
constexpr std::size_t kCount = kBytes / 4;

using Moves = std::function<void(const Group&, Floats& whole, Floats& slice, CallOptions)>;

// Of all ranks together: four, on two nodes.
double bytes_of(const Moves& operation, const std::string& algorithm) {
  ::setenv("LOCKSTEP_CACHE_DIR", "off", 1);
  constexpr int kRounds = 4;
  std::uint64_t sent = 0;
  on_threads(node_groups({0, 0, 1, 1}, net::Security::plaintext), [&](const Group& g) {
    Floats whole(kCount);
    Floats slice(kCount / 4);
    operation(g, whole, slice, {.algorithm = algorithm});
    g.barrier();
    const std::uint64_t before = g.rank() == 0 ? settled_bytes_sent() : 0;
    g.barrier();
    for (int i = 0; i < kRounds; ++i) operation(g, whole, slice, {.algorithm = algorithm});
    g.barrier();
    if (g.rank() == 0) sent = (settled_bytes_sent() - before) / kRounds;
    g.barrier();
  });
  return static_cast<double>(sent) / kBytes;
}

void expect_bytes(const Moves& operation, double by_node, double flat, const char* flat_algorithm) {
  EXPECT_NEAR(bytes_of(operation, "by-node"), by_node, 0.01);
  EXPECT_NEAR(bytes_of(operation, ""), by_node, 0.01);  // the table takes it
  EXPECT_NEAR(bytes_of(operation, flat_algorithm), flat, 0.02);
}

TEST(NodeBytes, OfAllReduce) {
  expect_bytes([](const Group& g, Floats& x, Floats&, CallOptions o) { g.all_reduce(buffer(x), o); }, 2, 6,
               "halving-doubling");
}
TEST(NodeBytes, OfReduceScatter) {
  expect_bytes(
      [](const Group& g, Floats& x, Floats& y, CallOptions o) { g.reduce_scatter(buffer(x), buffer(y), o); },
      1, 3, "pairwise");
}
TEST(NodeBytes, OfAllGather) {
  expect_bytes(
      [](const Group& g, Floats& x, Floats& y, CallOptions o) { g.all_gather(buffer(y), buffer(x), o); }, 1,
      3, "ring");
}

// Sums of halves are halves, on every hop.
TEST(NodeBytes, OfSixteenBitsAreHalf) {
  const auto all_reduce = [](const Group& g, Floats& x, Floats&, CallOptions o) {
    g.all_reduce(buffer(x), o);
  };
  const auto of_halves = [](const Group& g, Floats& x, Floats&, CallOptions o) {
    g.all_reduce(Buffer{x.data(), x.size(), DType::bf16}, o);
  };
  for (const char* const algorithm :
       {"by-node", "halving-doubling", "doubling", "tree", "pairwise", "hierarchical", "ring"})
    EXPECT_NEAR(bytes_of(of_halves, algorithm), bytes_of(all_reduce, algorithm) / 2, 0.01) << algorithm;
}

}  // namespace
}  // namespace lockstep::testing
