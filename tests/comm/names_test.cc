// What ranks are called in messages.
#include <stdlib.h>

#include <filesystem>

#include "comm/call/rank_names.h"
#include "comm/names_cases.h"
#include "lockstep/observe/flight_dump.h"

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

TEST(RankNames, InDumps) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-names-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ::setenv("LOCKSTEP_DUMP_DIR", folder.c_str(), 1);
  with_own_groups(four(std::chrono::seconds(30)), [](Group world) {
    Group part = world.split(world.rank() % 2);
    if (world.rank() == 1) expect_error<PeerError>([&] { part.barrier(); });
  });
  ::unsetenv("LOCKSTEP_DUMP_DIR");
  const FlightDump dump = read_flight_dump(std::filesystem::path(folder) / flight_dump_name("world/0.1", 0));
  EXPECT_EQ(dump.world_ranks, (std::vector<int>{1, 3}));
  EXPECT_TRUE(summary(dump)[0].starts_with("rank 3 left the group")) << summary(dump)[0];
  std::filesystem::remove_all(folder);
}

TEST(RankNames, OfRanksThatAreNotThere) {
  const Group alone = thread_groups(1)[0];
  EXPECT_EQ(alone.named(0), "rank 0");
  expect_error<UsageError>([&] { (void)alone.named(1); }, {"rank 1 is not in group world", "0 to 0"});
}

}  // namespace
}  // namespace lockstep::testing
