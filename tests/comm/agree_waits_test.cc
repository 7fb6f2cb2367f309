// Who waits for whom and who is at fault, among ranks whose notices are values in a vector.
#include <chrono>
#include <thread>

#include "base/repeated.h"
#include "comm/agree/agreement.h"
#include "comm/agree/group_failure.h"
#include "comm/call/stall.h"
#include "comm/log_lines.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

// All ranks' notices, as one rank sees them.
class FakeNotices final : public Notices {
 public:
  FakeNotices(std::vector<std::optional<Notice>>& board, int rank) : board_(board), rank_(rank) {}

  void post(const Notice& mine) override { board_[static_cast<std::size_t>(rank_)] = mine; }
  std::optional<Notice> read(int rank) const override { return board_[static_cast<std::size_t>(rank)]; }
  std::string where() const override { return "barrier(), operation 3 of group world"; }
  std::string seen(int rank) const override { return rank == 2 ? " (last seen in operation 2)" : ""; }
  std::string silent() const override { return library; }

  std::string library;

 private:
  std::vector<std::optional<Notice>>& board_;
  int rank_;
};

// Ranks of one group, of which some wait.
struct FakeRanks {
  explicit FakeRanks(int size) : board(static_cast<std::size_t>(size)) {
    const auto naming = std::make_shared<Naming>(RankNames::plain("world", size));
    for (int r = 0; r < size; ++r) {
      notices.push_back(std::make_unique<FakeNotices>(board, r));
      ranks.push_back(std::make_unique<Agreement>(*notices.back(), r, size, naming));
    }
  }
  Agreement& operator[](int rank) { return *ranks[static_cast<std::size_t>(rank)]; }
  std::vector<int> at_fault(int rank, const std::vector<int>& awaited) {
    return (*this)[rank].blame(awaited).numbers;
  }

  std::vector<std::optional<Notice>> board;
  std::vector<std::unique_ptr<FakeNotices>> notices;
  std::vector<std::unique_ptr<Agreement>> ranks;
};

Call within(milliseconds timeout) {
  Call call;
  call.timeout = timeout;
  call.sequence = 3;
  return call;
}

TEST(Agreed, TheMissingRankIsAtFault) {
  FakeRanks ranks(3);
  ranks[1].post({0, 2});
  EXPECT_EQ(ranks.at_fault(0, {1, 2}), std::vector<int>{2});
  EXPECT_EQ(ranks[0].blame({1, 2}).text, "rank 2 (last seen in operation 2)");
  EXPECT_EQ(ranks.at_fault(0, {1}), std::vector<int>{2}) << "rank 1 waits for it";
}

TEST(Agreed, TheEndOfALongChainIsAtFault) {
  constexpr int kRanks = 5000;  // as many as one likes
  FakeRanks ranks(kRanks);
  for (int r = 1; r + 1 < kRanks; ++r) ranks[r].post({r + 1});
  EXPECT_EQ(ranks.at_fault(0, {1}), std::vector<int>{kRanks - 1});
}

// Rank 0 waits for 1, which waits for 2, which waits for 0: nobody is late, and those that a rank waits for
// are all that it can name.
TEST(Agreed, InACircleARankNamesWhomItWaitsFor) {
  FakeRanks ranks(3);
  for (int r = 0; r < 3; ++r) ranks[r].post({(r + 1) % 3});
  EXPECT_EQ(ranks.at_fault(0, {1}), std::vector<int>{1});
  EXPECT_EQ(ranks.at_fault(1, {2}), std::vector<int>{2});
  EXPECT_EQ(ranks.at_fault(2, {0}), std::vector<int>{0});
}

TEST(Agreed, ACircleBesideALateRankDoesNotHideIt) {
  FakeRanks ranks(4);
  ranks[1].post({2});
  ranks[2].post({1, 3});
  EXPECT_EQ(ranks.at_fault(0, {1}), std::vector<int>{3});
}

// It may come from a wire.
TEST(Agreed, NumbersThatNoRankHasAreNobody) {
  FakeRanks ranks(3);
  ranks.board[1] = Notice{.waits_for = {-1, 3, 4095, 2}};
  EXPECT_EQ(ranks.at_fault(0, {1}), std::vector<int>{2});
}

TEST(Agreed, GivesUpWhenTheTimeIsOverAndNamesTheMissing) {
  FakeRanks ranks(3);
  const Call patient = within(std::chrono::hours(1));
  ranks[0].begin(patient, milliseconds(0));
  EXPECT_FALSE(ranks[0].overdue({1, 2}));
  const Call call = within(milliseconds(0));
  ranks[0].begin(call, milliseconds(0));
  EXPECT_FALSE(ranks[0].overdue({})) << "nobody is waited for";
  ranks[1].post({2});
  const auto late = ranks[0].overdue({1, 2});
  ASSERT_TRUE(late);
  EXPECT_EQ(late->missing(), std::vector<int>{2});
  EXPECT_STREQ(
      late->what(),
      "barrier(), operation 3 of group world: no answer within 0 s on rank 0; missing: rank 2 (last seen in "
      "operation 2)");
}

TEST(Agreed, ALibraryThatNamesNobodyIsSaidToBeSilent) {
  FakeRanks ranks(2);
  ranks.notices[0]->library = "MPI";
  const Call call = within(milliseconds(0));
  ranks[0].begin(call, milliseconds(0));
  const auto late = ranks[0].overdue({});
  ASSERT_TRUE(late);
  EXPECT_TRUE(late->missing().empty());
  EXPECT_NE(std::string(late->what()).find("missing: unknown, MPI does not say"), std::string::npos)
      << late->what();
}

TEST(Agreed, IsPatientWithThoseThatWaitOutside) {
  FakeRanks ranks(3);
  const Call call = within(milliseconds(0));
  ranks[0].begin(call, milliseconds(0));
  ranks.board[1] = Notice{.outside = true};
  EXPECT_FALSE(ranks[0].overdue({1}));
  EXPECT_TRUE(ranks[0].overdue({1, 2})) << "rank 2 has no excuse";
  const Call long_ago = within(milliseconds(-3000));
  ranks[0].begin(long_ago, milliseconds(0));
  EXPECT_TRUE(ranks[0].overdue({1})) << "but not for ever";
}

TEST(Agreed, WhoLeftIsNamedWithTheCallThatNeedsIt) {
  FakeRanks ranks(3);
  const PeerError left = ranks[0].left(2);
  EXPECT_EQ(left.rank(), 2);
  EXPECT_STREQ(left.what(),
               "rank 2 left group world while rank 0 waits for it in barrier(), operation 3 of group world");
}

// Ranks 2 and 3 of four are a part: what they wait for is told to the whole, and asked there.
TEST(Agreed, APartAsksTheWhole) {
  FakeRanks whole(4);
  std::vector<std::optional<Notice>> board(2);
  FakeNotices notices(board, 0);
  const auto naming = std::make_shared<Naming>(RankNames::plain("world", 4).part({2, 3}));
  Agreement part(notices, 0, 2, naming);
  part.is_part_of(&whole[2], {});
  part.post({1});
  ASSERT_TRUE(whole.board[2]);
  EXPECT_EQ(whole.board[2]->waits_for, std::vector<int>{3});
  EXPECT_EQ(part.blame({1}).numbers, std::vector<int>{3});
  whole[3].post({0});  // it is held up there by one that is not in the part
  EXPECT_EQ(part.blame({1}).numbers, std::vector<int>{0});
  EXPECT_EQ(part.blame({1}).text, "rank 0");
}

// How often the other engine is told of a hundred posts in a row.
int times_told() {
  FakeRanks ranks(2);
  int told = 0;
  ranks[0].on_wait([&](const std::vector<int>& awaited) {
    EXPECT_EQ(awaited, std::vector<int>{1});
    ++told;
  });
  for (int i = 0; i < 100; ++i) ranks[0].post({1});
  return told;
}

// A busy machine may take half a second for the hundred, which are then told twice: once more.
TEST(Agreed, TellsTheOtherEngineTwiceASecond) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Clock::time_point start = Clock::now();
    const int told = times_told();
    if (Clock::now() - start >= milliseconds(400)) {
      say_repeated("a hundred posts took 400 ms");
      continue;
    }
    EXPECT_EQ(told, 1);
    return;
  }
  FAIL() << "a hundred posts took 400 ms, five times in a row";
}

// People want to hear of an hour, by a clock that only the test moves: it takes no time to wait so long, and
// a rank that the machine keeps waiting has waited for nothing.
constexpr std::int64_t kHour = std::chrono::nanoseconds(std::chrono::hours(1)).count();

// Lines that rank `rank` says, which has waited for rank 3 for longer than people like.
std::vector<std::string> said_by(FakeRanks& ranks, int rank) {
  const LogLines lines;
  std::int64_t ahead = 0;
  Stall stall(std::chrono::hours(1), [&] { return now_ns() + ahead; });
  Call call = within(std::chrono::hours(1));
  call.stall = &stall;
  ranks[rank].begin(call, milliseconds(0));
  ranks[rank].start_wait();
  for (int i = 0; i < 2; ++i) {
    ranks[rank].look({3});
    ahead = 2 * kHour;
  }
  ranks[rank].end();
  return lines.with("has waited");
}

TEST(Agreed, NobodyIsToldOfAWaitInWhichSomethingMoves) {
  FakeRanks ranks(2);
  const LogLines lines;
  std::int64_t time = 0;
  Stall stall(std::chrono::hours(1), [&] { return time; });
  Call call = within(std::chrono::hours(1));
  call.stall = &stall;
  ranks[0].begin(call, milliseconds(0));
  ranks[0].start_wait();
  for (int i = 0; i < 3; ++i) {
    ranks[0].look({1});
    std::this_thread::sleep_for(milliseconds(3));
    ranks[0].moved();
    time = now_ns() + kHour - 1;  // less than an hour after what moved, more than that after the last look
  }
  EXPECT_TRUE(lines.with("has waited").empty());
  ranks[0].look({1});
  EXPECT_TRUE(lines.with("has waited").empty());
  time = now_ns() + kHour;
  ranks[0].look({1});
  EXPECT_EQ(lines.with("has waited").size(), 1U) << "nothing moved";
}

TEST(Agreed, TheLowestThatWaitsTellsPeople) {
  FakeRanks ranks(4);
  ASSERT_EQ(said_by(ranks, 1).size(), 1U);
  ranks[0].post({3});
  EXPECT_TRUE(said_by(ranks, 1).empty()) << "rank 0 says it";
  ranks.board[0] = Notice{.outside = true};
  EXPECT_EQ(said_by(ranks, 1).size(), 1U) << "rank 0 says something else, elsewhere";
}

TEST(Agreed, AMateThatWaitsForThisRankLeavesItToSpeak) {
  FakeRanks ranks(4);
  ranks[0].post({1});
  EXPECT_TRUE(said_by(ranks, 1).empty());
  ranks[1].is_part_of(nullptr, {0});
  EXPECT_EQ(said_by(ranks, 1).size(), 1U);
  ranks[0].post({2});
  EXPECT_TRUE(said_by(ranks, 1).empty()) << "it waits for another";
}

TEST(Agreed, WhoseWaitsEndOutsideSaysNothing) {
  FakeRanks ranks(4);
  ranks.board[3] = Notice{.outside = true};
  EXPECT_TRUE(said_by(ranks, 0).empty());
}

TEST(GroupsFailure, TheFirstStays) {
  GroupFailure failure;
  failure.check();
  EXPECT_FALSE(failure.any());
  EXPECT_TRUE(failure.keep(record_of(PeerError(2, "rank 2 died"))));
  EXPECT_FALSE(failure.keep(record_of(SystemError("the disk is full"))));
  try {
    failure.check();
    ADD_FAILURE() << "it has failed";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 2);
    EXPECT_STREQ(error.what(), "rank 2 died");
  }
}

}  // namespace
}  // namespace lockstep::testing
