// The engine over Gloo, with threads as ranks: what it sums, and what its ranks are told when one of them
// calls something else, comes late, leaves or dies.
#include <latch>
#include <random>

#include "comm/algo/algorithm.h"
#include "comm/engine/gloo_engine.h"
#include "comm/engine/node_engine.h"
#include "comm/expect_error.h"
#include "comm/form_members.h"
#include "comm/patience.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "comm/world/group_impl.h"
#include "comm/world/local_world.h"
#include "lockstep/base/knobs.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
constexpr std::chrono::minutes kPatient{2};

// The carrier notices no death here: its ranks are threads of one process.
std::vector<Group> gloo_groups(int size, milliseconds timeout = kPatient) {
  std::vector<Group> groups(static_cast<std::size_t>(size));
  on_threads(thread_groups(size, {.timeout = kPatient}), [&](const Group& carrier) {
    groups[static_cast<std::size_t>(carrier.rank())] =
        make_group(make_gloo_engine(kept_engine_of(carrier)), "world", timeout);
  });
  return groups;
}

// Nodes of two ranks, Gloo across, found over TCP.
std::vector<Group> node_gloo_groups(const std::vector<int>& nodes, const std::string& name = "shm+gloo") {
  const AcrossMaker across = [](Engine& all, int colour, int key, const std::string& group,
                                const Call& split) -> std::unique_ptr<Engine> {
    auto column = all.split(colour, key, group, split);
    if (column == nullptr) return nullptr;
    return make_gloo_engine(std::move(column));
  };
  return node_groups(nodes, net::Security::plaintext, kPatient, name, across);
}

// Numbers whose sum depends on the order of adding them up.
std::vector<float> rough(int rank, std::size_t count) {
  std::mt19937 dice(static_cast<unsigned>(rank) + 1);
  std::vector<float> x(count);
  for (float& value : x) value = std::ldexp(static_cast<float>(dice()), static_cast<int>(dice() % 40) - 50);
  return x;
}

using Sums = std::vector<std::vector<float>>;  // of every rank

Sums sums_over(std::vector<Group> groups, std::size_t count, CallOptions options) {
  Sums sums(groups.size());
  on_threads(std::move(groups), [&](const Group& g) {
    auto& x = sums[static_cast<std::size_t>(g.rank())] = rough(g.rank(), count);
    g.all_reduce(buffer(x), options);
  });
  return sums;
}

TEST(Gloo, CanonicalSumsHaveTheBitsOfSharedMemory) {
  for (const int size : {2, 3, 4, 5})
    for (const std::size_t count : {std::size_t{1}, std::size_t{33}, std::size_t{50'000}})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(count) + " elements");
        EXPECT_EQ(sums_over(gloo_groups(size), count, {.op = op}),
                  sums_over(thread_groups(size), count, {.op = op}));
      }
}

TEST(Gloo, OthersCollectivesThatSumAreCanonicalToo) {
  constexpr std::size_t kCount = 999;
  Sums reduced(2), scattered(2);
  for (const int engine : {0, 1})
    on_threads(engine == 0 ? gloo_groups(3) : thread_groups(3), [&](const Group& g) {
      const auto x = rough(g.rank(), 3 * kCount);
      std::vector<float> whole(x.size());
      std::vector<float> part(kCount);
      g.reduce(buffer(x), buffer(whole), 1);
      g.reduce_scatter(buffer(x), buffer(part));
      if (g.rank() == 1) reduced[static_cast<std::size_t>(engine)] = whole;
      if (g.rank() == 2) scattered[static_cast<std::size_t>(engine)] = part;
    });
  EXPECT_EQ(reduced[0], reduced[1]);
  EXPECT_EQ(scattered[0], scattered[1]);
}

// Gloo's own, where the order is left to it or it is asked for by name; then with its own bits.
TEST(Gloo, AnyOrderIsGloosOwn) {
  const Sums named = sums_over(gloo_groups(4), 50'000, {.algorithm = "ring"});
  EXPECT_EQ(sums_over(gloo_groups(4), 50'000, {.order = Order::any}), named);
  EXPECT_NE(sums_over(gloo_groups(4), 50'000, {}), named);
}

// LOCKSTEP_ALGORITHM, in groups that are formed as init() does.
class GlooForced : public FormsGroups {
 protected:
  void with(const char* algorithm, int size, const std::function<void(const Group&)>& body) {
    SCOPED_TRACE(algorithm);
    set("LOCKSTEP_ENGINE", "gloo");
    set("LOCKSTEP_ALGORITHM", algorithm);
    members(size, [&](int rank) { body(form_group({.id = algorithm, .size = size, .rank = rank}, kAmple)); });
  }
};

std::string algorithm_of(const Work& work) {
  work.wait();
  return work.timing().algorithm;
}

// Of ours, by cost.
constexpr const char* kAnyCanonical = "";

void expect_by(const Group& g, const Work& work, std::string_view name) {
  const std::string by = algorithm_of(work);
  if (name != kAnyCanonical) {
    EXPECT_EQ(by, name);
  } else if (const Algorithm* const ours = find_algorithm(by);
             ours == nullptr || !ours->canonical(g.nodes())) {
    ADD_FAILURE() << by << " is none of ours in canonical order";
  }
}

TEST_F(GlooForced, RunsEveryCollectiveThatItHas) {
  constexpr std::size_t kCount = 3 * 999;
  const Sums canonical = sums_over(thread_groups(3), kCount, {});
  struct Case {
    const char* forced;
    const char* sum;        // of f32
    const char* narrow;     // a sum of bf16, of which Gloo has none
    const char* scattered;  // a reduce-scatter, which Gloo does not have
    const char* gathered;
    bool canonical;
  };
  for (const Case& c : {Case{"ring", "ring", "ring", "ring", "ring", false},
                        Case{"bcube", "bcube", kAnyCanonical, kAnyCanonical, "native", false},
                        Case{"native", kAnyCanonical, kAnyCanonical, kAnyCanonical, "native", true},
                        Case{"canonical", kAnyCanonical, kAnyCanonical, kAnyCanonical, "native", true},
                        Case{"tree", "tree", "tree", kAnyCanonical, "native", true},
                        Case{"pairwise", "pairwise", "pairwise", "pairwise", "native", true},
                        Case{"direct", kAnyCanonical, kAnyCanonical, kAnyCanonical, "native", true},
                        Case{"doubling", "doubling", "doubling", kAnyCanonical, "native", true}})
    with(c.forced, 3, [&](const Group& g) {
      ASSERT_STREQ(g.engine(), "gloo");
      const auto own = rough(g.rank(), kCount);
      auto x = own;
      std::vector<BFloat16> narrow(kCount);
      std::vector<float> part(kCount / 3);
      std::vector<float> all(kCount * 3);
      expect_by(g, g.all_reduce_async(buffer(x)), c.sum);
      expect_by(g, g.all_reduce_async(buffer(narrow)), c.narrow);
      expect_by(g, g.reduce_scatter_async(buffer(own), buffer(part)), c.scattered);
      expect_by(g, g.all_gather_async(buffer(own), buffer(all)), c.gathered);
      EXPECT_EQ(x == canonical[static_cast<std::size_t>(g.rank())], c.canonical);
      for (int r = 0; r < 3; ++r)
        EXPECT_TRUE(std::ranges::equal(std::span(all).subspan(static_cast<std::size_t>(r) * kCount, kCount),
                                       rough(r, kCount)));
      g.barrier();
    });
}

// Also where any order will do; not where the call names one; and sub-groups have it too.
TEST_F(GlooForced, StandsBehindTheCallsOwn) {
  with("tree", 4, [](const Group& g) {
    std::vector<float> x(10, 1);
    EXPECT_EQ(algorithm_of(g.all_reduce_async(buffer(x), {.order = Order::any})), "tree");
  });
  with("ring", 4, [](const Group& g) {
    std::vector<float> x(10, 1);
    expect_by(g, g.all_reduce_async(buffer(x), {.algorithm = "canonical"}), kAnyCanonical);
    EXPECT_EQ(algorithm_of(g.all_reduce_async(buffer(x), {.algorithm = "bcube"})), "bcube");
    const Group half = g.split(g.rank() % 2);
    EXPECT_EQ(algorithm_of(half.all_reduce_async(buffer(x))), "ring");
    int number = g.rank();
    if (g.rank() == 0) g.send(Buffer{&number, 1, DType::i32}, 1);
    if (g.rank() == 1) g.recv(Buffer{&number, 1, DType::i32}, 0);
    EXPECT_EQ(number, g.rank() == 1 ? 0 : g.rank());
  });
}

// One worker needs no Gloo, and other engines have no bcube.
TEST_F(GlooForced, ItsNamesAreTakenWhereItIsAskedFor) {
  with("bcube", 1, [](const Group& g) { EXPECT_EQ(g.all_reduce(7), 7); });
  set("LOCKSTEP_ALGORITHM", "fastest");
  const auto form = [] { (void)form_group({.id = "none", .size = 1, .rank = 0}, kAmple); };
  expect_error<UsageError>(form, {"'fastest'", "LOCKSTEP_ALGORITHM", "direct", "bcube", "canonical"});
  set("LOCKSTEP_ENGINE", "shm");
  set("LOCKSTEP_ALGORITHM", "bcube");
  const std::string said = expect_error<UsageError>(form, {"'bcube'", "LOCKSTEP_ALGORITHM", "direct"});
  EXPECT_EQ(said.find("native"), std::string::npos) << said;
}

TEST(Gloo, SaysWhichOfItsSumsAreCanonical) {
  for (const auto& group :
       {gloo_groups(3).front(), thread_groups(3).front()}) {  // from wherever they are asked for
    const auto canonical = [&](std::string_view name) {
      return group.sums_canonically({.options = {.algorithm = name}});
    };
    for (const char* name : {"ring", "bcube", "native"}) EXPECT_FALSE(canonical(name)) << name;
    for (const char* name : {"canonical", "tree"}) EXPECT_TRUE(canonical(name)) << name;
  }
}

TEST(Gloo, AnAverageOfOneIsDividedOnce) {
  on_threads(gloo_groups(3), [](const Group& world) {
    const Group alone = world.split(world.rank());
    ASSERT_STREQ(alone.engine(), "gloo");
    ASSERT_EQ(alone.size(), 1);
    for (const double divisor : {0.0, 1.0, 4.0, kDivisorOfOthers}) {
      const double by = divisor > 0 ? divisor : 1;
      const CallOptions average{.op = ReduceOp::avg, .divisor = divisor};
      std::vector<double> x = {8, -24};
      std::vector<double> y(2);
      alone.all_reduce(buffer(x), buffer(y), average);
      EXPECT_EQ(y, (std::vector<double>{8 / by, -24 / by})) << divisor;
      alone.reduce(buffer(x), buffer(y), 0, average);
      EXPECT_EQ(y, (std::vector<double>{8 / by, -24 / by})) << divisor;
      alone.reduce_scatter(buffer(x), buffer(y), average);
      EXPECT_EQ(y, (std::vector<double>{8 / by, -24 / by})) << divisor;
    }
    std::vector<Half> halves = {to_half(6), to_half(-1)};
    alone.all_reduce(buffer(halves), {.op = ReduceOp::avg, .divisor = 2});
    EXPECT_EQ(to_float(halves[0]), 3);
    EXPECT_EQ(to_float(halves[1]), -0.5);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      std::vector<float> x = {3, 5};
      alone.all_reduce(buffer(x), {.op = op});
      EXPECT_EQ(x, (std::vector<float>{3, 5}));
    }
  });
}

TEST(Gloo, ADivisorMayBeTheOthers) {
  for (const char* algorithm : {"", "ring"})
    on_threads(gloo_groups(3), [&](const Group& g) {
      std::vector<double> x = {6};
      g.all_reduce(
          buffer(x),
          {.op = ReduceOp::avg, .algorithm = algorithm, .divisor = g.rank() == 1 ? kDivisorOfOthers : 9});
      EXPECT_EQ(x[0], 2);
    });
}

TEST(Gloo, WhoCalledWhatIsToldToEveryRank) {
  for (const bool larger : {false, true})
    on_threads(gloo_groups(3), [&](const Group& g) {
      std::vector<float> x(40, 1);
      g.all_reduce(buffer(x));
      const Buffer mine{x.data(), g.rank() == 1 ? (larger ? 40U : 5U) : 20U, DType::f32};
      const std::string line = expect_error<MismatchError>(
          [&] { g.all_reduce(mine, {.order = Order::any}); },
          {"operation 2 of group world", "rank 0, 2 called all_reduce(f32 × 20", "rank 1 called all_reduce"});
      EXPECT_EQ(expect_error<MismatchError>([&] { g.barrier(); }), line);
    });
  on_threads(gloo_groups(3), [](const Group& g) {
    std::vector<float> x(6);
    expect_error<MismatchError>([&] { g.rank() == 2 ? g.barrier() : g.broadcast(buffer(x), 0); },
                                {"rank 0, 1 called broadcast", "rank 2 called barrier"});
  });
}

TEST(Gloo, AMessageOfAnotherLength) {
  for (const std::size_t sent : {std::size_t{3}, std::size_t{9}})
    on_threads(gloo_groups(2), [&](const Group& g) {
      std::vector<float> x(9);
      expect_error<MismatchError>(
          [&] {
            if (g.rank() == 0)
              g.recv(Buffer{x.data(), 4, DType::f32}, 1);
            else
              g.send(ConstBuffer(x.data(), sent, DType::f32), 0);
            g.barrier();
          },
          {"rank 0 called recv(f32 × 4", "rank 1 called send(f32 × " + std::to_string(sent)});
    });
}

TEST(Gloo, WhoIsMissingIsNamed) {
  expect_seen("1", 2, milliseconds(100), [](milliseconds patience, Seen& seen) {
    std::latch told(2);
    on_threads(gloo_groups(3), [&](const Group& g) {
      std::vector<float> x(7, 1);
      g.all_reduce(buffer(x));
      if (g.rank() == 1) return told.wait();
      std::string line;
      try {
        g.all_reduce(buffer(x), {.timeout = g.rank() == 0 ? patience : milliseconds(60'000)});
        ADD_FAILURE() << "rank " << g.rank() << " got through";
      } catch (const TimeoutError& error) {
        line = note_missing(seen, error);
        EXPECT_NE(line.find("all_reduce(f32 × 7, sum), operation 2"), std::string::npos) << line;
      }
      EXPECT_EQ(expect_error<TimeoutError>([&] { g.barrier(); }), line);
      told.count_down();
    });
  });
}

TEST(Gloo, AMessageThatDoesNotComeIsATimeout) {
  for (const int size : {2, 3}) {
    std::latch told(1);
    on_threads(gloo_groups(size), [&](const Group& g) {
      float x = 0;
      if (g.rank() != 0) return told.wait();
      try {
        g.recv(Buffer{&x, 1, DType::f32}, 1, {.timeout = milliseconds(100)});
        ADD_FAILURE() << "nothing was sent";
      } catch (const TimeoutError& error) {
        EXPECT_EQ(error.missing(), std::vector<int>{1}) << error.what();
      }
      told.count_down();
    });
  }
}

TEST(Gloo, WhoLeftIsNamed) {
  with_own_groups(gloo_groups(4), [](Group g) {
    g.barrier();
    if (g.rank() == 2) return;
    try {
      g.barrier();
      ADD_FAILURE() << "rank " << g.rank() << " got through";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 2) << error.what();
    }
  });
}

// By messages, where the carrier has no part.
TEST(Gloo, WhoLeftInsteadOfSendingIsNamed) {
  with_own_groups(gloo_groups(3), [](Group g) {
    g.barrier();
    if (g.rank() == 2) return;
    float x = 0;
    try {
      g.recv(Buffer{&x, 1, DType::f32}, 2);
      ADD_FAILURE() << "nothing was sent";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 2) << error.what();
    }
  });
}

TEST(NodeGloo, CanonicalSumsHaveTheBitsOfSharedMemory) {
  for (const char* name : {"shm+gloo", "tcp+gloo"})
    EXPECT_EQ(sums_over(node_gloo_groups({0, 0, 1, 1}, name), 5000, {.algorithm = "by-node"}),
              sums_over(thread_groups(4), 5000, {}))
        << name;
}

// Rank 2 is the first of its node: in the group across nodes it has number 1, as another rank has in the
// world.
TEST(NodeGloo, WhoIsGoneIsNamedAsInTheWorld) {
  with_own_groups(node_gloo_groups({0, 0, 1, 1}), [](Group g) {
    g.barrier();
    if (g.rank() >= 2) return;  // a whole node: only the group across knows
    try {
      std::vector<float> x(1000);
      g.all_reduce(buffer(x));
      ADD_FAILURE() << "rank " << g.rank() << " got through";
    } catch (const PeerError& error) {
      EXPECT_TRUE(error.rank() == 2 || error.rank() == 3) << error.what();
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
