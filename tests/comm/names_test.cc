// What ranks are called in messages.
#include "comm/call/rank_names.h"
#include "comm/names_cases.h"

namespace lockstep::testing {
namespace {

std::vector<Group> four(std::chrono::milliseconds timeout) { return thread_groups(4, {.timeout = timeout}); }

TEST(RankNames, AreWorldRanksAndTheGroupsOwnWhereTheyDiffer) {
  const RankNames world("world", {0, 1, 2, 3});
  EXPECT_EQ(world.named(3), "rank 3");
  const RankNames odd = world.split("world/0.1", {1, 3});
  EXPECT_EQ(odd.named(1), "rank 3 (1 in world/0.1)");
  EXPECT_EQ(odd.number(1), 1);
  const RankNames first = world.split("world/0.0", {0, 2});
  EXPECT_EQ(first.named(0), "rank 0");
  // An engine's part of a group speaks as the group does.
  const RankNames part = odd.part({1});
  EXPECT_EQ(part.named(0), "rank 3 (1 in world/0.1)");
  EXPECT_EQ(part.number(0), 1);
  EXPECT_EQ(part.of_number(1), 0);
  EXPECT_EQ(part.of_number(0), -1);
}

TEST(RankNames, InTimeouts) { expect_world_ranks_in_timeouts(four); }
TEST(RankNames, OfThoseThatLeave) { expect_world_ranks_of_those_that_leave(four); }
TEST(RankNames, InDifferences) { expect_world_ranks_in_differences(four); }

TEST(RankNames, OfRanksThatAreNotThere) {
  const Group alone = thread_groups(1)[0];
  EXPECT_EQ(alone.named(0), "rank 0");
  expect_error<UsageError>([&] { (void)alone.named(1); }, {"rank 1 is not in group world", "0 to 0"});
}

}  // namespace
}  // namespace lockstep::testing
