// A rank that waits for long says so.
#include "comm/stall.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/stall_cases.h"
#include "lockstep/observe/flight_dump.h"
#include "lockstep/observe/stop_sign.h"

namespace lockstep::testing {
namespace {

// Sets the threshold while it lives; no other thread runs then.
class WarnAfter {
 public:
  explicit WarnAfter(const char* seconds) { ::setenv("LOCKSTEP_WARN_AFTER_S", seconds, 1); }
  ~WarnAfter() { ::unsetenv("LOCKSTEP_WARN_AFTER_S"); }
  WarnAfter(const WarnAfter&) = delete;
  WarnAfter& operator=(const WarnAfter&) = delete;
};

std::vector<Group> four_ranks(std::chrono::milliseconds timeout) {
  return thread_groups(4, {.timeout = timeout});
}

TEST(Stall, NamesTheLateRankAndTheCall) {
  const WarnAfter soon("0.3");
  expect_blame(lines_of_a_late_rank(four_ranks, 2, 1), "rank 2 (last seen in operation 1) in");
  expect_blame(lines_of_a_late_rank(four_ranks, 0, 1), "rank 0 (last seen in operation 1) in");
}

// Along a ring each waits for its neighbour; the one to name is the one that nobody's neighbour explains.
TEST(Stall, NamesTheEndOfTheChain) {
  const WarnAfter soon("0.3");
  expect_blame(lines_of_a_late_rank(four_ranks, 3, 1, {.algorithm = "ring"}), "rank 3 (");
}

// Not each of those that wait, and not at every look.
TEST(Stall, IsSaidByOneRankAndEverMoreRarely) {
  const WarnAfter soon("0.5");
  const std::vector<std::string> lines = lines_of_a_late_rank(four_ranks, 1, 3);
  EXPECT_EQ(lines.size(), 3U);
  for (const std::string& line : lines) EXPECT_TRUE(line.starts_with("rank 0 has waited ")) << line;
}

TEST(Stall, ZeroIsNever) {
  const WarnAfter never("0");
  const LogLines lines;
  on_threads(thread_groups(2), [&](const Group& world) {
    world.barrier();
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    world.barrier();
  });
  EXPECT_TRUE(lines.take().empty());
}

TEST(Stall, IsNoStallWhilePeersCome) {
  const WarnAfter soon("1");
  const LogLines lines;
  on_threads(thread_groups(2), [&](const Group& world) {
    // Each wait is short, all of them together are not.
    for (int i = 0; i < 16; ++i) {
      if (world.rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(75));
      world.barrier();
    }
  });
  EXPECT_TRUE(lines.with("has waited").empty());
}

// The launcher asks by a file, which only those that have waited for a while look for.
TEST(Stall, WritesADumpWhenTheJobIsToldToStop) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("lockstep-stall-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  ::setenv("LOCKSTEP_DUMP_DIR", folder.c_str(), 1);
  const std::filesystem::path dump = folder / "flight-world-rank0.json";
  on_threads(thread_groups(2), [&](const Group& world) {
    world.barrier();
    if (world.rank() == 1) {
      std::ofstream(stop_sign(folder, "threads")).put('\n');
      const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
      while (!std::filesystem::exists(dump) && Clock::now() < patience)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    world.barrier();  // and nothing has failed
  });
  ::unsetenv("LOCKSTEP_DUMP_DIR");
  const FlightDump written = read_flight_dump(dump);
  EXPECT_FALSE(written.error_kind);
  EXPECT_EQ(written.world_rank, 0);
  const std::string line = summary(written).front();
  EXPECT_NE(line.find("operation 2 of group world: rank 0 waits in barrier() for"), std::string::npos)
      << line;
  EXPECT_NE(line.find("rank 1 is at operation 1"), std::string::npos) << line;
  EXPECT_FALSE(std::filesystem::exists(folder / "flight-world-rank1.json"));
  std::filesystem::remove_all(folder);
}

TEST(Stall, PurposeIsInTimeoutsToo) {
  std::latch done(1);
  on_threads(thread_groups(2), [&](const Group& world) {
    if (world.rank() == 1) return done.wait();
    expect_error<TimeoutError>(
        [&] {
          world.barrier({.timeout = std::chrono::milliseconds(200), .purpose = "the end of the epoch"});
        },
        {"operation 1 of group world, the end of the epoch: no answer within 0.2 s"});
    done.count_down();
  });
}

}  // namespace
}  // namespace lockstep::testing
