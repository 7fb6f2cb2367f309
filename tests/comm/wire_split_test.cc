// Sub-groups across wires: who is in them, and that they run beside each other.
#include <map>

#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

using Ints = std::vector<std::int32_t>;

// The parent's ranks of a sub-group, in its order.
Ints members(const Group& part, int parent_rank) {
  const std::int32_t own = parent_rank;
  Ints all(static_cast<std::size_t>(part.size()));
  part.all_gather(ConstBuffer(&own, 1, DType::i32), buffer(all));
  return all;
}

class WireSplit : public OverWires {};

TEST_P(WireSplit, ByColourInTheOrderOfKeyThenRank) {
  on_threads(GetParam().make(kPatient), [](const Group& world) {
    const int r = world.rank();
    const Group plain = world.split(r % 3);
    const std::map<int, Ints> by_colour = {{0, {0, 3}}, {1, {1}}, {2, {2}}};
    EXPECT_EQ(members(plain, r), by_colour.at(r % 3));
    EXPECT_EQ(plain.name(), "world/0." + std::to_string(r % 3));
    const Group reversed = world.split(0, -r);
    EXPECT_EQ(members(reversed, r), (Ints{3, 2, 1, 0}));
    EXPECT_EQ(reversed.nodes()[0], world.nodes()[3]);
    const Group ties = world.split(5, r % 2);
    EXPECT_EQ(members(ties, r), (Ints{0, 2, 1, 3}));
    const Group extremes = world.split(2147483647, r == 3 ? -2147483647 - 1 : 2147483647);
    EXPECT_EQ(members(extremes, r), (Ints{3, 0, 1, 2}));
    const Group part = world.split(r == 2 ? -7 : 1);
    EXPECT_EQ(static_cast<bool>(part), r != 2);
    if (part) {
      EXPECT_EQ(members(part, r), (Ints{0, 1, 3}));
    }
    EXPECT_FALSE(world.split(-1));
    for (const Group& g : {reversed, ties, extremes}) {
      Floats x(100'000, static_cast<float>(r));
      g.all_reduce(buffer(x));
      EXPECT_EQ(x.back(), 6);
      x.assign(100'000, static_cast<float>(g.rank()));
      g.broadcast(buffer(x), 2);
      EXPECT_EQ(x.back(), 2);
    }
    world.barrier();
  });
}

TEST_P(WireSplit, ByNode) {
  on_threads(GetParam().make(kPatient), [](const Group& world) {
    const Group node = world.split_by_node();
    Ints expected;
    for (int r = 0; r < world.size(); ++r)
      if (world.nodes()[static_cast<std::size_t>(r)] == world.nodes()[static_cast<std::size_t>(world.rank())])
        expected.push_back(r);
    EXPECT_EQ(members(node, world.rank()), expected);
    expect_usable(node);
    // One of each node.
    const Group leaders = world.split(node.rank() == 0 ? 0 : -1);
    EXPECT_EQ(static_cast<bool>(leaders), node.rank() == 0);
    if (leaders) expect_usable(leaders);
  });
}

TEST_P(WireSplit, MayBeNestedAndOutliveItsParents) {
  with_own_groups(GetParam().make(kPatient), [](Group world) {
    const int r = world.rank();
    Group three = world.split(r == 1 ? 7 : 0, -r);  // 3, 2, 0 and 1 alone
    Group pair = three.split(three.rank() == 1 ? 1 : 0);
    world = {};
    EXPECT_EQ(members(three, r), r == 1 ? (Ints{1}) : (Ints{3, 2, 0}));
    three = {};
    const Ints expected = r == 1 ? Ints{1} : r == 2 ? Ints{2} : Ints{3, 0};
    EXPECT_EQ(members(pair, r), expected);
    const Group again = pair.split(0, -pair.rank());
    pair = {};
    EXPECT_EQ(members(again, r), Ints(expected.rbegin(), expected.rend()));
    const CommMemory memory = again.allocate(64);
    memory.as<std::int32_t>()[0] = r;
    again.all_reduce(Buffer{memory.data(), 1, DType::i32});
    EXPECT_EQ(memory.as<std::int32_t>()[0], r == 1 || r == 2 ? r : 3);
  });
}

TEST_P(WireSplit, AgainAndAgain) {
  on_threads(GetParam().make(kPatient), [](const Group& world) {
    for (int round = 0; round < 12; ++round) {
      const Group same = world.split(0, round % 2 == 0 ? 0 : -world.rank());
      ASSERT_EQ(members(same, world.rank())[0], round % 2 == 0 ? 0 : 3);
      const Group pair = same.split(same.rank() % 2);
      pair.barrier();
    }
  });
}

TEST_P(WireSplit, GroupsThatOverlapRunConcurrently) {
  on_threads(GetParam().make(kPatient), [](const Group& world) {
    const int r = world.rank();
    const Group row = world.split(r / 2);
    const Group column = world.split(r % 2);
    const auto work = [](const Group& g, float gives, float expected, bool comm) {
      for (int round = 0; round < 40; ++round) {
        const std::size_t count = 1 + static_cast<std::size_t>(round) * 997;
        Floats own(count, gives);
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
    // Splits in one group while another works, too.
    const auto splits = [&](const Group& g) {
      for (int round = 0; round < 5; ++round)
        ASSERT_EQ(g.split(0, -g.rank()).rank(), g.size() - 1 - g.rank());
    };
    const auto me = static_cast<float>(r);
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      work(row, me, r < 2 ? 1 : 5, false);
      splits(row);
    });
    threads.emplace_back([&] {
      splits(column);
      work(column, me, r % 2 == 0 ? 2 : 4, true);
    });
    work(world, me, 6, r % 2 == 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, WireSplit, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
