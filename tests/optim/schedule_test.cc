#include "lockstep/optim/schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Schedule, Constant) {
  const ScheduleOptions options{.lr = 0.5};
  EXPECT_EQ(lr_at(options, 0, 10), 0.5);
  EXPECT_EQ(lr_at(options, 9, 10), 0.5);
  EXPECT_EQ(lr_at(options, 1000, 10), 0.5);
}

TEST(Schedule, WarmupRisesToTheRateForEveryKind) {
  for (const Schedule kind :
       {Schedule::constant, Schedule::cosine, Schedule::linear, Schedule::poly, Schedule::step}) {
    const ScheduleOptions options{.kind = kind, .lr = 1, .warmup_steps = 4, .every = 100};
    EXPECT_EQ(lr_at(options, 0, 20), 0.25);
    EXPECT_EQ(lr_at(options, 1, 20), 0.5);
    EXPECT_EQ(lr_at(options, 3, 20), 1);
    EXPECT_EQ(lr_at(options, 4, 20), 1);  // the decay starts here
    if (depends_on_length(kind)) {
      EXPECT_LT(lr_at(options, 5, 20), 1);
    }
  }
}

TEST(Schedule, CosineGoesHalfAWayAtTheMiddle) {
  const ScheduleOptions options{.kind = Schedule::cosine, .lr = 1, .final_lr = 0.2, .warmup_steps = 10};
  EXPECT_NEAR(lr_at(options, 10 + 50, 110), 0.6, 1e-15);
  EXPECT_NEAR(lr_at(options, 10 + 25, 110), 0.6 + 0.4 * 0.70710678118654752, 1e-15);
  EXPECT_EQ(lr_at(options, 110, 110), 0.2);
  EXPECT_EQ(lr_at(options, 500, 110), 0.2);
}

TEST(Schedule, LinearIsALine) {
  const ScheduleOptions options{.kind = Schedule::linear, .lr = 1, .final_lr = 0.5};
  EXPECT_EQ(lr_at(options, 0, 4), 1);
  EXPECT_EQ(lr_at(options, 1, 4), 0.875);
  EXPECT_EQ(lr_at(options, 3, 4), 0.625);
  EXPECT_EQ(lr_at(options, 4, 4), 0.5);
  EXPECT_EQ(lr_at(options, 9, 4), 0.5);
}

TEST(Schedule, PolyIsAPowerOfWhatIsLeft) {
  const ScheduleOptions options{.kind = Schedule::poly, .lr = 1, .final_lr = 0.5, .warmup_steps = 2};
  EXPECT_EQ(lr_at(options, 1, 6), 1);
  EXPECT_EQ(lr_at(options, 2, 6), 1);
  EXPECT_EQ(lr_at(options, 4, 6), 0.5 + 0.5 * 0.25);
  EXPECT_EQ(lr_at(options, 5, 6), 0.5 + 0.5 * 0.0625);
  EXPECT_EQ(lr_at(options, 6, 6), 0.5);
  EXPECT_EQ(lr_at(options, 9, 6), 0.5);
  ScheduleOptions line = options, straight = options;
  line.power = 1;
  straight.kind = Schedule::linear;
  for (int step = 0; step < 8; ++step) EXPECT_EQ(lr_at(line, step, 6), lr_at(straight, step, 6)) << step;
}

TEST(Schedule, ARateFollowsTheBatch) {
  EXPECT_EQ(scaled_lr(0.125, 16), 2);
  EXPECT_EQ(scaled_lr(0.125, 0.5), 0.0625);
  EXPECT_EQ(scaled_lr(0.125, 16, LrScaling::square_root), 0.5);
  EXPECT_THROW(scaled_lr(std::numeric_limits<double>::quiet_NaN(), 1), UsageError);
  EXPECT_THROW(scaled_lr(1, -1), UsageError);
}

TEST(Schedule, StepDropsEverySoMany) {
  const ScheduleOptions options{.kind = Schedule::step, .lr = 8, .every = 3, .factor = 0.5};
  EXPECT_EQ(lr_at(options, 2, 10), 8);
  EXPECT_EQ(lr_at(options, 3, 10), 4);
  EXPECT_EQ(lr_at(options, 5, 10), 4);
  EXPECT_EQ(lr_at(options, 9, 10), 1);
}

TEST(Schedule, WarmupLongerThanTheRunNeverDecays) {
  const ScheduleOptions options{.kind = Schedule::cosine, .lr = 1, .warmup_steps = 10};
  EXPECT_EQ(lr_at(options, 4, 5), 0.5);
}

TEST(Schedule, NamesRoundTripAndBadOnesAreListed) {
  for (const Schedule kind :
       {Schedule::constant, Schedule::cosine, Schedule::linear, Schedule::poly, Schedule::step})
    EXPECT_EQ(parse_schedule(to_string(kind)), kind);
  try {
    parse_schedule("cosin");
    FAIL() << "'cosin' was accepted";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              "learning-rate schedule 'cosin'; accepted: constant, cosine, linear, poly, step");
  }
}

TEST(Schedule, RefusesBadOptionsByName) {
  const auto refuses = [](const ScheduleOptions& options, const std::string& name) {
    try {
      lr_at(options, 0, 1);
      ADD_FAILURE() << name << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(name + " is "), std::string::npos) << error.what();
    }
  };
  refuses({.lr = -1}, "lr");
  refuses({.lr = std::numeric_limits<double>::quiet_NaN()}, "lr");
  refuses({.final_lr = -1}, "final_lr");
  refuses({.warmup_steps = -1}, "warmup_steps");
  refuses({.kind = Schedule::poly, .power = -1}, "power");
  refuses({.kind = Schedule::step, .every = 0}, "every");
  refuses({.kind = Schedule::step, .every = 1, .factor = -1}, "factor");
  EXPECT_THROW(lr_at({}, -1, 1), UsageError);
  EXPECT_THROW(lr_at({}, 0, -1), UsageError);
}

}  // namespace
}  // namespace lockstep
