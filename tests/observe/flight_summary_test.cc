#include <gtest/gtest.h>

#include "lockstep/observe/flight_dump.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kNow = 10'000 * kMs;

FlightEntry entry(std::uint64_t sequence, FlightState state, std::int64_t begin_ms_ago,
                  std::int64_t end_ms_ago = 0) {
  const bool over = state == FlightState::done || state == FlightState::failed;
  return {.sequence = sequence,
          .what = "all_reduce",
          .detail = "f32 × 1024, sum",
          .algorithm = state == FlightState::waiting ? "" : "ring",
          .state = state,
          .begin_ns = kNow - begin_ms_ago * kMs,
          .end_ns = over ? kNow - end_ms_ago * kMs : 0};
}

FlightDump dump_of(std::vector<std::vector<FlightEntry>> entries) {
  FlightDump dump{.group = "world", .size = static_cast<int>(entries.size()), .steady_ns = kNow};
  for (std::size_t r = 0; r < entries.size(); ++r)
    dump.ranks.push_back({.rank = static_cast<int>(r), .entries = std::move(entries[r])});
  return dump;
}

using Lines = std::vector<std::string>;
using enum FlightState;

TEST(FlightSummary, OneRankHasNotCome) {
  const FlightDump dump = dump_of({{entry(16, done, 2500, 2400), entry(17, waiting, 2100)},
                                   {entry(17, waiting, 2300)},
                                   {entry(16, done, 2500, 2400)},
                                   {entry(17, waiting, 2200)}});
  EXPECT_EQ(summary(dump),
            Lines{"operation 17 of group world: ranks 0, 1, 3 wait in all_reduce(f32 × 1024, sum) for 2.3 s; "
                  "rank 2 is at operation 16, finished 2.4 s ago, and has not called 17"});
}

TEST(FlightSummary, RanksMayBeInAnyOrder) {
  FlightDump dump = dump_of({{entry(1, waiting, 12)}, {entry(1, waiting, 12)}, {}});
  std::swap(dump.ranks[0], dump.ranks[2]);
  EXPECT_EQ(summary(dump),
            Lines{"operation 1 of group world: ranks 0, 1 wait in all_reduce(f32 × 1024, sum) for 12.0 ms; "
                  "rank 2 has called nothing"});
}

TEST(FlightSummary, SeveralPlacesAtOnce) {
  const FlightDump dump = dump_of({{entry(5, running, 30)},
                                   {entry(6, waiting, 20)},
                                   {entry(5, done, 30, 10)},
                                   {entry(4, failed, 90, 40)}});
  EXPECT_EQ(
      summary(dump),
      (Lines{"operation 4 of group world: rank 3 failed in all_reduce(f32 × 1024, sum) by ring after "
             "50.0 ms; ranks 0, 2 are past it, at operation 5; rank 1 is past it, at operation 6",
             "operation 5 of group world: rank 0 runs all_reduce(f32 × 1024, sum) by ring for 30.0 ms; "
             "rank 1 is past it, at operation 6; rank 2 finished it 10.0 ms ago; rank 3 is still at "
             "operation 4 and has not called 5",
             "operation 6 of group world: rank 1 waits in all_reduce(f32 × 1024, sum) for 20.0 ms; "
             "rank 0 is still at operation 5 and has not called 6; rank 2 is at operation 5, finished "
             "10.0 ms ago, and has not called 6; rank 3 is still at operation 4 and has not called 6"}));
}

TEST(FlightSummary, TheDeadAndTheGone) {
  FlightDump dump = dump_of({{entry(17, waiting, 300)},
                             {entry(16, done, 900, 800)},
                             {entry(17, running, 400)},
                             {},
                             {entry(16, done, 900, 700)}});
  dump.ranks[1].state = RankState::dead;
  dump.ranks[2].state = RankState::dead;
  dump.ranks[2].signal = 9;
  dump.ranks[3].state = RankState::dead;
  dump.ranks[4].state = RankState::left;
  EXPECT_EQ(summary(dump),
            (Lines{"rank 1 died (signal unknown); its last operation was 16, all_reduce(f32 × 1024, sum), "
                   "finished 800.0 ms ago",
                   "rank 2 died (signal 9); it was in operation 17, all_reduce(f32 × 1024, sum)",
                   "rank 3 died (signal unknown); it had called nothing",
                   "rank 4 left the group; its last operation was 16, all_reduce(f32 × 1024, sum), finished "
                   "700.0 ms ago",
                   "operation 17 of group world: rank 0 waits in all_reduce(f32 × 1024, sum) for 300.0 ms; "
                   "rank 1 died at operation 16 and has not called 17; rank 2 died in it; rank 3 died before "
                   "it called anything; rank 4 is at operation 16, finished 700.0 ms ago, and has not called "
                   "17"}));
}

// A group whose order is not the world's; nothing is known of its last rank.
TEST(FlightSummary, RanksAreCalledAsInTheWorld) {
  FlightDump dump =
      dump_of({{entry(17, waiting, 300)}, {entry(16, done, 900, 800)}, {entry(17, waiting, 200)}});
  dump.group = "world/0.1";
  dump.size = 4;
  dump.world_ranks = {7, 5, 3, 1};
  dump.ranks[1].state = RankState::dead;
  EXPECT_EQ(
      summary(dump),
      (Lines{"rank 5 died (signal unknown); its last operation was 16, all_reduce(f32 × 1024, sum), "
             "finished 800.0 ms ago",
             "operation 17 of group world/0.1: ranks 3, 7 wait in all_reduce(f32 × 1024, sum) for 300.0 "
             "ms; rank 5 died at operation 16 and has not called 17",
             "nothing is known of rank 1"}));
}

TEST(FlightSummary, OfRanksOnOtherMachinesOnlyThatTheyAreGone) {
  FlightDump dump = dump_of({{entry(17, failed, 300, 100)}, {}, {}});
  dump.ranks[1].state = RankState::dead;
  dump.ranks[2].state = RankState::left;
  for (int r : {1, 2}) dump.ranks[static_cast<std::size_t>(r)].recorded = false;
  EXPECT_EQ(
      summary(dump),
      (Lines{"rank 1 is gone: its process, its machine or the way to it; what it had called is not known "
             "here",
             "rank 2 left the group; what it had called is not known here",
             "operation 17 of group world: rank 0 failed in all_reduce(f32 × 1024, sum) by ring after 200.0 "
             "ms"}));
}

TEST(FlightSummary, MismatchNamesWhoCalledWhat) {
  FlightDump dump =
      dump_of({{entry(3, failed, 5, 1)}, {entry(3, failed, 5, 1)}, {entry(3, failed, 5, 1)}, {}});
  dump.ranks[1].entries[0].what = "broadcast";
  dump.ranks[1].entries[0].detail = "f32 × 4, root 0";
  EXPECT_EQ(summary(dump),
            Lines{"operation 3 of group world: ranks 0, 2 called all_reduce(f32 × 1024, sum), rank 1 called "
                  "broadcast(f32 × 4, root 0); rank 3 has called nothing"});
}

TEST(FlightSummary, OnlyTheFirstMismatchIsTold) {
  FlightDump dump = dump_of(
      {{entry(3, done, 5, 1), entry(4, failed, 5, 1)}, {entry(3, done, 5, 1), entry(4, failed, 5, 1)}});
  dump.ranks[1].entries[1].detail = "f32 × 4, max";
  EXPECT_EQ(summary(dump).size(), 1U);
  EXPECT_TRUE(summary(dump)[0].starts_with("operation 4 ")) << summary(dump)[0];
  dump.ranks[1].entries[0].what = "barrier";
  EXPECT_TRUE(summary(dump)[0].starts_with("operation 3 ")) << summary(dump)[0];
}

TEST(FlightSummary, PointToPointIsNoPlace) {
  FlightDump dump = dump_of({{entry(8, done, 900, 800), entry(0, waiting, 500)},
                             {entry(8, done, 900, 800), entry(0, failed, 500, 100)}});
  dump.ranks[0].entries[1].what = "recv";
  dump.ranks[0].entries[1].detail = "f32 × 4, from 1";
  dump.ranks[1].entries[1].what = "send";
  dump.ranks[1].entries[1].detail = "i8 × 2, to 0";
  EXPECT_EQ(summary(dump), (Lines{"rank 0 waits in recv(f32 × 4, from 1) for 500.0 ms",
                                  "rank 1 failed in send(i8 × 2, to 0) after 400.0 ms"}));
}

TEST(FlightSummary, ManyRanksAreRanges) {
  std::vector<std::vector<FlightEntry>> entries(12, {entry(2, waiting, 1)});
  entries[7] = {};
  entries[9] = {};
  const Lines lines = summary(dump_of(std::move(entries)));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("ranks 0-6, 8, 10, 11 wait in"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("; ranks 7, 9 have called nothing"), std::string::npos) << lines[0];
}

TEST(FlightSummary, QuietAndUnknown) {
  EXPECT_EQ(summary(dump_of({{entry(6, done, 9, 8)}, {entry(7, done, 9, 8)}})),
            Lines{"group world: nobody waits; the last operation is 7"});
  EXPECT_EQ(summary(dump_of({{}})), Lines{"group world: no operation is recorded"});
  FlightDump dump = dump_of({{entry(6, waiting, 9)}});
  dump.size = 4;
  EXPECT_EQ(summary(dump).back(), "nothing is known of ranks 1-3");
}

TEST(FlightSummary, BracesInNamesAreText) {
  FlightDump dump = dump_of({{entry(6, running, 9)}});
  dump.ranks[0].entries[0].what = "{}{0:";
  dump.ranks[0].entries[0].algorithm = "}{9}";
  EXPECT_EQ(summary(dump),
            Lines{"operation 6 of group world: rank 0 runs {}{0:(f32 × 1024, sum) by }{9} for 9.0 ms"});
}

}  // namespace
}  // namespace lockstep
