#include "lockstep/base/clock.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(Clock, NowMovesForwardInNanoseconds) {
  const auto outer = Clock::now();
  const std::int64_t before = now_ns();
  const auto start = Clock::now();
  while (Clock::now() - start < milliseconds(2)) {
  }
  const std::int64_t took = now_ns() - before;
  EXPECT_GE(took, 2'000'000);
  EXPECT_LE(nanoseconds(took), Clock::now() - outer);
}

TEST(Deadline, PassesOnceItsSpanIsOver) {
  const auto start = Clock::now();
  const auto soon = Deadline::after(milliseconds(2));
  while (!soon.passed()) ASSERT_LT(Clock::now() - start, std::chrono::seconds(5));
  EXPECT_GE(Clock::now() - start, milliseconds(1));
  EXPECT_EQ(soon.left(), nanoseconds(0));  // never negative
}

TEST(Deadline, OfNoTimeHasPassed) {
  EXPECT_TRUE(Deadline::after(nanoseconds(0)).passed());
  EXPECT_TRUE(Deadline::after(milliseconds(-5)).passed());
  EXPECT_EQ(Deadline::after(milliseconds(-5)).left(), nanoseconds(0));
}

TEST(Deadline, TellsWhatIsLeft) {
  const auto later = Deadline::after(hours(1));
  EXPECT_FALSE(later.passed());
  EXPECT_GT(later.left(), std::chrono::minutes(59));
  EXPECT_LE(later.left(), hours(1));
}

TEST(Deadline, NeverPasses) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(Deadline::never().left(), hours(24));
}

TEST(Deadline, BeyondTheClockNeverPasses) {
  EXPECT_FALSE(Deadline::after(nanoseconds::max()).passed());
  EXPECT_EQ(Deadline::after(nanoseconds::max()).left(), hours(24));
}

}  // namespace
}  // namespace lockstep
