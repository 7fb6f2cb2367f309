// Shards among some of the workers, and as often as there are such sets (HYBRID_SHARD): the bits of
// DataParallel.
#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "parallel/unit_models.h"

namespace lockstep {
namespace {

using testing::equal;
using testing::expect_error;
using testing::on_threads;
using testing::train_ddp;
using testing::train_units;
using testing::UnitNet;
using testing::UnitRun;

UnitRun among(int sharers) {
  UnitRun run;
  run.options.shard_workers = sharers;
  return run;
}

TEST(Hybrid, HasTheBitsOfDataParallel) {
  const auto expected = train_ddp();
  for (const auto& [workers, sharers] : {std::pair(4, 2), {4, 1}, {4, 4}, {6, 3}, {2, 1}})
    EXPECT_TRUE(equal(train_units(among(sharers), workers), expected))
        << workers << " in sets of " << sharers;
}

// Of the parameters one share by the workers of a set, of the rest one by all.
TEST(Hybrid, HoldsAShareOfItsSet) {
  std::size_t bytes[3] = {};
  for (const int sharers : {1, 2, 4}) {
    UnitRun run = among(sharers);
    run.steps = 1;
    run.look = [&](const Strategy& strategy, const Group& group) {
      if (group.rank() == 0) bytes[sharers / 2] = strategy.parameter_bytes();
    };
    train_units(run, 4);
  }
  const UnitNet net;
  std::size_t apart = net.alone.nbytes();
  for (const auto& p : net.frozen->parameters()) apart += p.nbytes();
  EXPECT_EQ((bytes[0] - apart), 2 * (bytes[1] - apart));
  EXPECT_EQ((bytes[1] - apart), 2 * (bytes[2] - apart));
}

TEST(Hybrid, SetsThatDoNotComeOutEvenAreRefused) {
  on_threads(thread_groups(3), [](const Group& group) {
    expect_error<UsageError>([&] { train_units(among(2), group); }, {"shard_workers = 2 of 3", "divides"});
  });
}

}  // namespace
}  // namespace lockstep
