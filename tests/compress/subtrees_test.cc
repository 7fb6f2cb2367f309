// Who carries which subtree, and how frames go round.
#include "lockstep/grad/subtrees.h"

#include <gtest/gtest.h>

#include <cstring>

#include "compress/carriage.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/lanes.h"

namespace lockstep {
namespace {

using compress::Carriage;

TEST(Subtrees, AsTheHeaderSays) {
  const Subtrees four{.lanes = 8, .count = 4};
  EXPECT_EQ(four.span(), 2);
  EXPECT_EQ(subtrees_of(1, 2, four), (SubtreeShare{.first = 2, .count = 2}));
  EXPECT_EQ(subtrees_of(2, 3, four), (SubtreeShare{.first = 2, .count = 2}));
  EXPECT_EQ(subtrees_of(1, 3, four), (SubtreeShare{.first = 1, .count = 1}));
  EXPECT_EQ(subtrees_of(5, 8, four), (SubtreeShare{.first = 2, .count = 1, .place = 1, .workers = 2}));
}

TEST(Subtrees, EveryLaneIsInTheSubtreeThatItsWorkerCarries) {
  for (const int lanes : {1, 2, 3, 5, 8, 13})
    for (int count = 1; count <= 2 * lanes; count *= 2) {
      const Subtrees subtrees{.lanes = lanes, .count = count};
      try {
        check(subtrees);
      } catch (const UsageError&) {
        EXPECT_GE(count, 2 * lanes - 1);  // beyond the padded tree
        continue;
      }
      for (int workers = 1; workers <= lanes; ++workers) {
        std::vector<int> carried(static_cast<std::size_t>(subtrees.existing()), 0);
        for (int w = 0; w < workers; ++w) {
          const LaneRange range = lanes_of(w, workers, lanes);
          const SubtreeShare share = subtrees_of(w, workers, subtrees);
          EXPECT_EQ(share.count == 0, range.count == 0);
          for (int lane = range.first; lane < range.first + range.count; ++lane) {
            EXPECT_GE(lane / subtrees.span(), share.first);
            EXPECT_LT(lane / subtrees.span(), share.first + share.count);
          }
          for (int s = share.first; s < share.first + share.count; ++s)
            ++carried[static_cast<std::size_t>(s)];
        }
        for (int w = 0; w < workers; ++w) {
          const SubtreeShare share = subtrees_of(w, workers, subtrees);
          for (int s = share.first; s < share.first + share.count; ++s)
            EXPECT_EQ(carried[static_cast<std::size_t>(s)], share.workers);
        }
        for (const int times : carried) EXPECT_GE(times, 1);
      }
    }
}

TEST(Subtrees, RefusesWhatTheTreeDoesNotHave) {
  for (const int count : {-1, 0, 3, 16})
    EXPECT_THROW(check({.lanes = 8, .count = count}), UsageError) << count;
  EXPECT_THROW(check({.lanes = 0, .count = 1}), UsageError);
  check({.lanes = 5, .count = 8});
}

// What each rank puts in comes out everywhere: whole frames, several of them, parts.
TEST(Carriage, BringsEveryFrameToEveryRank) {
  constexpr std::size_t kFrame = 24;
  for (const int lanes : {5, 8})
    for (const int workers : {1, 2, 3, 4, 5})
      for (const int count : {1, 2, 4, 8}) {
        const Subtrees subtrees{.lanes = lanes, .count = count};
        const std::vector<Group> groups = thread_groups(workers);
        std::vector<std::byte> pieces;
        for (const Group& group : groups) {
          const Carriage carriage(group, subtrees);
          const SubtreeShare own = carriage.own();
          std::vector<std::byte> frames(static_cast<std::size_t>(own.count) * kFrame);
          for (std::size_t i = 0; i < frames.size(); ++i)
            frames[i] = static_cast<std::byte>((static_cast<std::size_t>(own.first) * kFrame + i) % 251);
          std::vector<std::byte> piece(carriage.piece_bytes(kFrame));
          carriage.put(frames, kFrame, piece);
          pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        std::vector<std::byte> joined;
        const auto frames = Carriage(groups[0], subtrees).frames(pieces, kFrame, joined);
        ASSERT_EQ(frames.size(), static_cast<std::size_t>(subtrees.existing()));
        for (std::size_t s = 0; s < frames.size(); ++s)
          for (std::size_t i = 0; i < kFrame; ++i)
            ASSERT_EQ(frames[s][i], static_cast<std::byte>((s * kFrame + i) % 251))
                << lanes << " lanes, " << workers << " workers, " << count << " subtrees: " << s << ", " << i;
      }
}

TEST(Carriage, SaysWhatSeveralSubtreesAWorkerCost) {
  const auto piece = [](int workers, int count) {
    return Carriage(thread_groups(workers)[0], {.lanes = 8, .count = count}).piece_bytes(100);
  };
  EXPECT_EQ(piece(4, 4), 100u);
  EXPECT_EQ(piece(2, 4), 200u);
  EXPECT_EQ(piece(3, 4), 200u);  // the third has two
  EXPECT_EQ(piece(8, 4), 50u);   // two share one
  EXPECT_EQ(piece(3, 2), 100u);  // the third has a whole one
}

}  // namespace
}  // namespace lockstep
