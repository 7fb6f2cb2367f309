// What the first job on a machine measures: every way through shared memory, the same table on all ranks.
#include "comm/tune/trials.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/thread_ranks.h"
#include "comm/world/group_impl.h"

namespace lockstep::testing {
namespace {

const std::vector<int> kOneNode(3, 0);

CallShape shape_of(Collective what, int ranks, std::size_t bytes, bool reachable) {
  return {.what = what,
          .ranks = ranks,
          .bytes = bytes,
          .reachable = reachable,
          .nodes = std::span(kOneNode).first(static_cast<std::size_t>(ranks))};
}

CallShape all_reduce_of(int ranks, std::size_t bytes, bool reachable) {
  return shape_of(Collective::all_reduce, ranks, bytes, reachable);
}

TEST(Trials, MeasureEveryWayThroughSharedMemory) {
  for (int ranks : {2, 3}) {
    std::vector<std::string> tables(static_cast<std::size_t>(ranks));
    on_threads(thread_groups(ranks), [&](const Group& g) {
      Selector table;
      run_trials(engine_of(g), table);
      tables[static_cast<std::size_t>(g.rank())] = table.to_json();
      for (const bool reachable : {true, false})
        for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
          int measured = 0;
          for (const Candidate& row : table.table(all_reduce_of(ranks, bytes, reachable), Order::canonical)) {
            EXPECT_EQ(row.fitted,
                      row.algorithm->needs().reach && !(reachable && row.algorithm->needs().pages))
                << row.algorithm->name();
            EXPECT_EQ(row.measured_s > 0, row.fitted) << row.algorithm->name() << " at " << bytes;
            measured += row.fitted ? 1 : 0;
          }
          EXPECT_GE(measured, bytes <= kEagerBytes ? 2 : 1);
        }
      const CallShape gathered = shape_of(Collective::all_gather, ranks, 1 << 16, true);
      EXPECT_GT(table.table(gathered, Order::canonical).front().measured_s, 0);
    });
    for (const std::string& text : tables) EXPECT_EQ(text, tables.front());
  }
}

// Too little room for the larger ones: what fits is measured, and nobody stays behind.
TEST(Trials, LeaveOutWhatTheArenaHasNoRoomFor) {
  ::setenv("LOCKSTEP_ARENA", "64M", 1);
  const std::vector<Group> groups = thread_groups(2);
  ::unsetenv("LOCKSTEP_ARENA");
  on_threads(groups, [](const Group& g) {
    const CommMemory held = g.allocate(1);
    Selector table;
    run_trials(engine_of(g), table);
    EXPECT_GT(table.table(all_reduce_of(2, 1 << 20, true), Order::canonical).front().measured_s, 0);
    EXPECT_EQ(table.table(all_reduce_of(2, 64 << 20, true), Order::canonical).front().measured_s, 0);
    EXPECT_GT(table.table(all_reduce_of(2, 64 << 20, false), Order::canonical).front().measured_s, 0);
    g.barrier();
  });
}

}  // namespace
}  // namespace lockstep::testing
