#include "comm/call/failure_record.h"

#include <gtest/gtest.h>

#include <array>

namespace lockstep {
namespace {

std::vector<int> missing_in(const FailureRecord& record) {
  try {
    throw_record(record);
  } catch (const TimeoutError& error) {
    return error.missing();
  }
}

TEST(FailureRecord, KeepsKindRanksAndText) {
  try {
    throw_record(record_of(PeerError(3, "it died")));
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 3);
    EXPECT_STREQ(error.what(), "it died");
  }
  EXPECT_EQ(missing_in(record_of(TimeoutError({0, 200}, "nobody came"))), (std::vector<int>{0, 200}));
}

// Two ranks of one channel may call its ranks by different names while a group is being split.
TEST(FailureRecord, TravelsByNumberBetweenRanksThatUseOtherNames) {
  constexpr std::array sender = {3, 7, 200};
  constexpr std::array receiver = {0, 1, 2};
  const FailureRecord told = numbered(record_of(TimeoutError({7, 200}, "nobody came")), sender);
  EXPECT_EQ(missing_in(named(told, receiver)), (std::vector<int>{1, 2}));
  EXPECT_EQ(missing_in(named(told, sender)), (std::vector<int>{7, 200}));
  EXPECT_EQ(named(numbered(record_of(PeerError(3, "it died")), sender), receiver).rank, 0);
}

TEST(FailureRecord, WhoSpeaksOfOthersIsTakenAtItsWord) {
  constexpr std::array column = {0, 2};
  const FailureRecord told = numbered(record_of(TimeoutError({1, 2}, "nobody came")), column);
  EXPECT_EQ(missing_in(named(told, column)), (std::vector<int>{1, 2}));
  EXPECT_EQ(named(numbered(record_of(PeerError(1, "it died")), column), column).rank, 1);
}

TEST(FailureRecord, NumbersThatNoRankHasChangeNothing) {
  constexpr std::array names = {4, 5};
  FailureRecord hostile = record_of(TimeoutError({0, 9}, "nobody came"));
  hostile.by_number = 1;
  EXPECT_EQ(missing_in(named(hostile, names)), (std::vector<int>{0, 9}));
  EXPECT_EQ(named(record_of(SystemError("full")), names).rank, -1);
}

}  // namespace
}  // namespace lockstep
