// Do calls match, and who is said to differ: the same for every transport.
#include <gtest/gtest.h>

#include "comm/agree/mismatch.h"

namespace lockstep::testing {
namespace {

CallCard sum_of(std::size_t count, std::uint64_t sequence = 7) {
  Call call;
  call.what = Collective::all_reduce;
  call.count = count;
  call.sequence = sequence;
  return card_of(call, "");
}

CallCard average_over(double divisor) {
  Call call;
  call.what = Collective::all_reduce;
  call.op = ReduceOp::avg;
  call.count = 4;
  call.divisor = divisor;
  call.sequence = 7;
  return card_of(call, "");
}

CallCard message(Collective what, std::size_t count, int peer) {
  Call call;
  call.what = what;
  call.count = count;
  call.root = peer;
  call.sequence = 6;
  return card_of(call, "");
}

bool all_same(const std::vector<CallCard>& cards) {
  return lockstep::all_same(static_cast<int>(cards.size()),
                            [&](int r) -> const CallCard& { return cards[static_cast<std::size_t>(r)]; });
}

std::string line_of(const std::vector<CallCard>& cards) {
  std::vector<Caller> callers;
  for (const CallCard& card : cards) callers.push_back({static_cast<int>(callers.size()), card});
  return who_called_what(RankNames::plain("world", static_cast<int>(cards.size())), callers);
}

TEST(Mismatched, EqualCardsAreTheSame) {
  EXPECT_TRUE(all_same({sum_of(4), sum_of(4), sum_of(4)}));
  EXPECT_TRUE(all_same({sum_of(4)}));
}

TEST(Mismatched, OneThatDiffersIsNamedApart) {
  const std::vector<CallCard> cards = {sum_of(4), sum_of(5), sum_of(4)};
  EXPECT_FALSE(all_same(cards));
  EXPECT_EQ(
      line_of(cards),
      "operation 7 of group world: ranks called different things: rank 0, 2 called all_reduce(f32 × 4, sum); "
      "rank 1 called all_reduce(f32 × 5, sum)");
}

TEST(Mismatched, CampsAreListedInTheOrderOfTheirFirst) {
  const std::vector<CallCard> cards = {sum_of(1), sum_of(2), sum_of(2), sum_of(3), sum_of(1)};
  EXPECT_FALSE(all_same(cards));
  EXPECT_EQ(
      line_of(cards),
      "operation 7 of group world: ranks called different things: rank 0, 4 called all_reduce(f32 × 1, sum); "
      "rank 1, 2 called all_reduce(f32 × 2, sum); rank 3 called all_reduce(f32 × 3, sum)");
}

TEST(Mismatched, NumbersAreSaidWhereTheyDiffer) {
  const std::vector<CallCard> cards = {sum_of(4, 8), sum_of(4, 7)};
  EXPECT_FALSE(all_same(cards));
  EXPECT_EQ(
      line_of(cards),
      "operation 7 of group world: ranks called different things: rank 0 called all_reduce(f32 × 4, sum) as "
      "operation 8; rank 1 called all_reduce(f32 × 4, sum) as operation 7");
}

// LOCKSTEP_ALGORITHM may differ; a call that names one does not ask it.
TEST(Mismatched, AlgorithmsThatAreForcedDiffer) {
  Call call;
  call.what = Collective::barrier;
  const std::vector<CallCard> cards = {card_of(call, "tree"), card_of(call, "ring")};
  EXPECT_FALSE(all_same(cards));
  EXPECT_NE(line_of(cards).find("rank 0 called barrier(by tree); rank 1 called barrier(by ring)"),
            std::string::npos)
      << line_of(cards);
  call.algorithm = "tree";
  EXPECT_TRUE(all_same({card_of(call, "tree"), card_of(call, "ring")}));
}

// A rank that leaves its divisor to the others agrees with any, but does not make any two agree.
TEST(Mismatched, DivisorsAreHeldAgainstTheFirstThatIsSaid) {
  const CallCard others = average_over(kDivisorOfOthers);
  EXPECT_TRUE(all_same({others, average_over(2), others, average_over(2)}));
  EXPECT_TRUE(all_same({others, others}));
  const std::vector<CallCard> cards = {others, average_over(2), average_over(3)};
  EXPECT_FALSE(all_same(cards));
  EXPECT_NE(
      line_of(cards).find("rank 1 called all_reduce(f32 × 4, avg over 2); rank 2 called all_reduce(f32 × 4, "
                          "avg over 3)"),
      std::string::npos)
      << line_of(cards);
}

TEST(Mismatched, RanksOfAPartAreNamedAsInTheWorld) {
  const RankNames names = RankNames::plain("world", 6).split("world/1", {5, 2});
  EXPECT_EQ(who_called_what(names, {0, sum_of(4)}, {1, sum_of(5)}),
            "operation 7 of group world/1: ranks called different things: rank 2 (1 in world/1) called "
            "all_reduce(f32 × 5, sum); rank 5 (0 in world/1) called all_reduce(f32 × 4, sum)");
}

TEST(Mismatched, MessagesAgreeInCountAndType) {
  const CallCard recv = message(Collective::recv, 4, 1);
  const CallCard send = message(Collective::send, 4, 0);
  const RankNames names = RankNames::plain("world", 2);
  EXPECT_TRUE(fits(recv, {.from = 1, .card = send, .bytes = 16, .expected = 16}));
  const CallCard longer = message(Collective::send, 5, 0);
  const Arrived five{.from = 1, .card = longer, .bytes = 20, .expected = 16};
  EXPECT_FALSE(fits(recv, five));
  EXPECT_EQ(why_unfit(names, {0, recv}, "somewhere", five),
            "group world: rank 0 called recv(f32 × 4, from 1) but rank 1 called send(f32 × 5, to 0)");
  EXPECT_FALSE(fits(recv, {.from = 1, .card = sum_of(4), .bytes = 16, .expected = 16}));
}

TEST(Mismatched, AnotherLengthOfTheSameCallIsAnotherAlgorithm) {
  const Arrived cut{.from = 1, .card = sum_of(4), .bytes = 8, .expected = 16};
  EXPECT_FALSE(fits(sum_of(4), cut));
  EXPECT_EQ(why_unfit(RankNames::plain("world", 2), {0, sum_of(4)}, "somewhere", cut),
            "somewhere: rank 1 sent 8 bytes where rank 0 expected 16; all ranks need the same cost table and "
            "LOCKSTEP_ settings");
}

// A card may come when this rank is some calls ahead; of calls to come, and of long ago, nothing is known.
TEST(Mismatched, CardsAreHeldAgainstTheCallsOfTheirNumber) {
  CallHistory history;
  EXPECT_EQ(history.other_than(sum_of(4, 0)), nullptr);
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) history.add(sum_of(sequence, sequence));
  EXPECT_EQ(history.other_than(sum_of(20, 20)), nullptr);
  EXPECT_EQ(history.other_than(sum_of(15, 15)), nullptr);
  ASSERT_NE(history.other_than(sum_of(99, 15)), nullptr);
  EXPECT_EQ(history.other_than(sum_of(99, 15))->count, 15U);
  EXPECT_EQ(history.other_than(sum_of(99, 21)), nullptr);
  EXPECT_EQ(history.other_than(sum_of(99, 2)), nullptr);
  CallCard sent = message(Collective::send, 4, 0);
  sent.sequence = 20;
  EXPECT_EQ(history.other_than(sent), nullptr);
  history.add(sum_of(1, 0));  // an engine's own, without a number: it takes nobody's place
  ASSERT_NE(history.other_than(sum_of(99, 16)), nullptr);
  EXPECT_EQ(history.other_than(sum_of(99, 16))->count, 16U);
}

}  // namespace
}  // namespace lockstep::testing
