// Sub-groups: who is in them, that they run beside each other, and whose memory they use.
#include <cstdlib>
#include <latch>
#include <map>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/comm/group.h"

namespace lockstep::testing {
namespace {

using Ints = std::vector<std::int32_t>;

const InitOptions kPatient{.timeout = std::chrono::seconds(30)};

// Sets a variable while it lives; no other thread runs then.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// The parent's ranks of a sub-group, in its order.
Ints members(const Group& part, int parent_rank) {
  const std::int32_t own = parent_rank;
  Ints all(static_cast<std::size_t>(part.size()));
  part.all_gather(ConstBuffer(&own, 1, DType::i32), buffer(all));
  return all;
}

TEST(Split, ByColourInTheOrderOfKeyThenRank) {
  on_threads(thread_groups(7, kPatient), [](const Group& world) {
    const int r = world.rank();
    const Group plain = world.split(r % 3);
    const std::map<int, Ints> by_colour = {{0, {0, 3, 6}}, {1, {1, 4}}, {2, {2, 5}}};
    EXPECT_EQ(members(plain, r), by_colour.at(r % 3));
    EXPECT_EQ(plain.rank(), r / 3);
    EXPECT_EQ(plain.name(), "world/0." + std::to_string(r % 3));
    const Group reversed = world.split(0, -r);
    EXPECT_EQ(members(reversed, r), (Ints{6, 5, 4, 3, 2, 1, 0}));
    const Group ties = world.split(5, r % 2);
    EXPECT_EQ(members(ties, r), (Ints{0, 2, 4, 6, 1, 3, 5}));
    const Group extremes = world.split(2147483647, r == 3 ? -2147483647 - 1 : 2147483647);
    EXPECT_EQ(members(extremes, r), (Ints{3, 0, 1, 2, 4, 5, 6}));
    const Group alone = world.split(r);
    EXPECT_EQ(alone.size(), 1);
    alone.barrier();
    EXPECT_EQ(plain.nodes(), std::vector<int>(static_cast<std::size_t>(plain.size()), 0));
  });
}

TEST(Split, ANegativeColourJoinsNone) {
  on_threads(thread_groups(4, kPatient), [](const Group& world) {
    const Group part = world.split(world.rank() == 2 ? -7 : 1);
    EXPECT_EQ(static_cast<bool>(part), world.rank() != 2);
    if (part) {
      EXPECT_EQ(members(part, world.rank()), (Ints{0, 1, 3}));
    }
    if (!part) expect_error<UsageError>([&] { part.barrier(); }, {"empty"});
    EXPECT_FALSE(world.split(-1));
    world.barrier();
  });
}

TEST(Split, MayBeNestedAndOutliveItsParents) {
  with_own_groups(thread_groups(8, kPatient), [](Group world) {
    const int r = world.rank();
    Group half = world.split(r / 4);
    Group quarter = half.split(half.rank() / 2);
    EXPECT_EQ(quarter.name(), "world/0." + std::to_string(r / 4) + "/0." + std::to_string(half.rank() / 2));
    world = {};
    EXPECT_EQ(members(half, r), r < 4 ? (Ints{0, 1, 2, 3}) : (Ints{4, 5, 6, 7}));
    half = {};
    EXPECT_EQ(members(quarter, r), (Ints{r / 2 * 2, r / 2 * 2 + 1}));
    const Group pair = quarter.split(0, -quarter.rank());
    quarter = {};
    EXPECT_EQ(members(pair, r), (Ints{r / 2 * 2 + 1, r / 2 * 2}));
    const CommMemory memory = pair.allocate(64);
    memory.as<std::int32_t>()[0] = r;
    pair.all_reduce(Buffer{memory.data(), 1, DType::i32}, {.algorithm = "direct"});
    EXPECT_EQ(memory.as<std::int32_t>()[0], r / 2 * 4 + 1);
  });
}

TEST(Split, GroupsThatOverlapRunConcurrently) {
  on_threads(thread_groups(4, kPatient), [](const Group& world) {
    const int r = world.rank();
    const Group row = world.split(r / 2);
    const Group column = world.split(r % 2);
    const auto work = [](const Group& g, float gives, float expected, bool comm) {
      for (int round = 0; round < 60; ++round) {
        const std::size_t count = 1 + static_cast<std::size_t>(round) * 997;
        std::vector<float> own(count, gives);
        const CommMemory memory = comm ? g.allocate(count * 4) : CommMemory();
        float* const x = comm ? memory.as<float>() : own.data();
        std::fill_n(x, count, gives);
        if (round % 3 == 0)
          g.all_reduce_async(Buffer{x, count, DType::f32}).wait();
        else
          g.all_reduce(Buffer{x, count, DType::f32});
        ASSERT_EQ(x[0], expected);
        ASSERT_EQ(x[count - 1], expected);
      }
    };
    const auto me = static_cast<float>(r);
    std::vector<std::jthread> threads;
    // Different orders on different ranks: the groups must not wait for each other.
    const auto in_row = [&] { work(row, me, r < 2 ? 1 : 5, false); };
    const auto in_column = [&] { work(column, me, r % 2 == 0 ? 2 : 4, true); };
    threads.emplace_back(in_row);
    threads.emplace_back(in_column);
    work(world, me, 6, r % 2 == 0);
  });
}

TEST(Split, ByNode) {
  on_threads(thread_groups(5, kPatient, {3, 0, 3, 0, 1}), [](const Group& world) {
    EXPECT_EQ(world.nodes(), (std::vector<int>{3, 0, 3, 0, 1}));
    const Group node = world.split_by_node();
    const std::vector<Ints> expected = {{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4}};
    EXPECT_EQ(members(node, world.rank()), expected[static_cast<std::size_t>(world.rank())]);
    for (int place : node.nodes()) EXPECT_EQ(place, world.nodes()[static_cast<std::size_t>(world.rank())]);
  });
  const Variable node_size("LOCKSTEP_NODE_SIZE", "2");
  on_threads(thread_groups(5, kPatient), [](const Group& world) {
    EXPECT_EQ(world.nodes(), (std::vector<int>{0, 0, 1, 1, 2}));
    EXPECT_EQ(world.split_by_node().size(), world.rank() == 4 ? 1 : 2);
  });
}

TEST(Split, ThreadGroupsRefusesWhatCannotBe) {
  expect_error<UsageError>([] { (void)thread_groups(0); }, {"at least one rank", "0"});
  expect_error<UsageError>([] { (void)thread_groups(-3); }, {"-3"});
  expect_error<UsageError>([] { (void)thread_groups(3, {}, {0, 1}); }, {"2 nodes", "3 ranks"});
  expect_error<UsageError>([] { (void)thread_groups(2, {}, {0, -1}); }, {"node -1"});
}

// The smallest arena holds the blocks of four or five such groups; hundreds pass through it.
TEST(Split, GivesItsMemoryBack) {
  const Variable arena("LOCKSTEP_ARENA", "64M");
  on_threads(thread_groups(4, kPatient), [](const Group& world) {
    for (int round = 0; round < 150; ++round) {
      const Group same = world.split(0, round % 2 == 0 ? 0 : -world.rank());
      ASSERT_EQ(members(same, world.rank())[0], round % 2 == 0 ? 0 : 3);
      const Group pair = same.split(same.rank() % 2);
      pair.barrier();
    }
  });
}

TEST(Split, WithNoRoomFailsOnEveryRankAtOnce) {
  const Variable arena("LOCKSTEP_ARENA", "64M");
  on_threads(thread_groups(4, {.timeout = std::chrono::minutes(5)}), [](const Group& world) {
    std::vector<Group> kept;
    expect_error<SystemError>(
        [&] {
          for (int i = 0; i < 50; ++i) kept.push_back(world.split(0));
        },
        {"rank 0's region of 64 MiB is full", "LOCKSTEP_ARENA"});
    EXPECT_GE(kept.size(), 2U);
    kept.front().barrier();  // those that were made still work
  });
}

TEST(Split, TheLeaderMayLeaveFirst) {
  std::latch left(1);
  on_threads(thread_groups(3, kPatient), [&](const Group& world) {
    Group part = world.split(0);
    const int r = part.rank();
    Ints x = {r};
    if (r == 1) part.send(buffer(x), 2);
    part.barrier();
    if (r == 0) {
      part = {};
      left.count_down();
    } else {
      left.wait();
    }
    for (int i = 0; i < 20; ++i) (void)world.split(0);  // room is looked for, nobody may take theirs
    if (r == 0) return;
    if (r == 2) part.recv(buffer(x), 1);
    EXPECT_EQ(x[0], 1);
    if (r == 1) part.recv(buffer(x), 2);
    if (r == 2) part.send(buffer(x), 1);
    try {
      part.barrier();
      ADD_FAILURE() << "rank 0 is not there";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 0);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
