#include "train/prediction.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Forward 4 s, backward 10 s, optimizer 1 s.
StepProfile profile(std::vector<BucketProfile> buckets, Crowding crowding = {}) {
  return {.before_s = 4, .backward_s = 10, .after_s = 1, .buckets = std::move(buckets), .crowding = crowding};
}

TEST(Prediction, WithoutAnExchangeItIsTheLocalStep) {
  const StepPrediction p = predict_step(profile({}));
  EXPECT_DOUBLE_EQ(p.step_s, 15);
  EXPECT_DOUBLE_EQ(p.exposed_s, 0);
  EXPECT_DOUBLE_EQ(p.comm_fraction(), 0);
}

TEST(Prediction, AnExchangeBehindBackwardIsHidden) {
  const StepPrediction p = predict_step(profile({{.ready = 0.5, .exchange_s = 3}}));
  EXPECT_DOUBLE_EQ(p.step_s, 15);
  EXPECT_DOUBLE_EQ(p.hidden_s, 3);
  EXPECT_DOUBLE_EQ(p.comm_fraction(), 3.0 / 18.0);
}

TEST(Prediction, BucketsWaitForTheirTurnAndForTheirGradients) {
  // [2, 8], [8, 14]: 4 after backward. Then a last one that is ready long before its turn.
  const StepPrediction two = predict_step(profile({{0.2, 6}, {0.5, 6}}));
  EXPECT_DOUBLE_EQ(two.step_s, 4 + 14 + 1);
  EXPECT_DOUBLE_EQ(two.exposed_s, 4);
  EXPECT_DOUBLE_EQ(two.hidden_s, 8);
  EXPECT_DOUBLE_EQ(two.comm_s, 12);
  EXPECT_DOUBLE_EQ(two.comm_fraction(), 12.0 / 27.0);
  EXPECT_DOUBLE_EQ(predict_step(profile({{0.2, 6}, {0.5, 6}, {1, 2}})).step_s, 4 + 16 + 1);
  // [1, 2], idle, [10, 13]
  const StepPrediction late = predict_step(profile({{0.1, 1}, {1, 3}}));
  EXPECT_DOUBLE_EQ(late.step_s, 4 + 13 + 1);
  EXPECT_DOUBLE_EQ(late.hidden_s, 1);
}

TEST(Prediction, WhatFollowsTheBucketsIsWaitedFor) {
  StepProfile p = profile({{0.5, 3}});
  p.counts_s = 0.5;
  EXPECT_DOUBLE_EQ(predict_step(p).step_s, 15.5);
  EXPECT_DOUBLE_EQ(predict_step(p).exposed_s, 0.5);
  p.waiting_s = 2;  // for data: in the step, in no share
  EXPECT_DOUBLE_EQ(predict_step(p).step_s, 17.5);
  EXPECT_DOUBLE_EQ(predict_step(p).comm_fraction(), 3.0 / 18.0);
}

TEST(Prediction, NothingHidesTheSharingOfUpdates) {
  StepProfile p = profile({{0.5, 3}});
  const StepPrediction without = predict_step(p);
  p.share_s = 2;
  const StepPrediction with = predict_step(p);
  EXPECT_DOUBLE_EQ(with.step_s, without.step_s + 2);
  EXPECT_DOUBLE_EQ(with.compute_s, without.compute_s);
  EXPECT_DOUBLE_EQ(with.comm_s, without.comm_s + 2);
  EXPECT_DOUBLE_EQ(with.hidden_s, without.hidden_s);
  EXPECT_DOUBLE_EQ(with.exposed_s, without.exposed_s + 2);
}

TEST(Prediction, ExchangeAndBackwardCostEachOther) {
  // [5, 9] at a rate of 3/4: backward ends a second later.
  const StepPrediction light = predict_step(profile({{0.5, 4}}, {.backward_rate = 0.75}));
  EXPECT_DOUBLE_EQ(light.step_s, 16);
  EXPECT_DOUBLE_EQ(light.comm_s, 4);
  // Twice as long, at half the rate: as two that share one core fairly.
  const StepPrediction heavy = predict_step(profile({{0.5, 2}}, {.slower = 2, .backward_rate = 0.5}));
  EXPECT_DOUBLE_EQ(heavy.step_s, 17);
  EXPECT_DOUBLE_EQ(heavy.comm_s, 4);
  // Backward ends in the middle of it: 2 s at half speed do its last second, and the exchange has half its
  // way left, alone.
  const StepPrediction middle = predict_step(profile({{0.9, 2}}, {.slower = 2, .backward_rate = 0.5}));
  EXPECT_DOUBLE_EQ(middle.hidden_s, 2);
  EXPECT_DOUBLE_EQ(middle.exposed_s, 1);
  EXPECT_DOUBLE_EQ(middle.step_s, 4 + 12 + 1);
  // Every beginning beside backward counts: [2, 4], [4, 6], not that after it.
  const StepPrediction begun = predict_step(profile({{0.2, 1}, {0.2, 1}, {1, 1}}, {.begin_s = 1}));
  EXPECT_DOUBLE_EQ(begun.hidden_s, 4);
  EXPECT_DOUBLE_EQ(begun.comm_s, 5);
  EXPECT_DOUBLE_EQ(begun.step_s, 4 + 11 + 1);
  EXPECT_DOUBLE_EQ(predict_step(profile({{0.5, 0}})).step_s, 15);
}

TEST(Prediction, ProfilesAreMediansOfStepsWithTheLastLayout) {
  const std::vector<StepTimes> steps = {
      {.before_s = 100,
       .backward_s = 100,
       .after_s = 100,
       .ready_s = {1, 2, 3}},  // before buckets were laid out
      {.waiting_s = 0, .before_s = 4, .backward_s = 10, .after_s = 1, .ready_s = {2, 10}},
      {.waiting_s = 5, .before_s = 5, .backward_s = 20, .after_s = 2, .ready_s = {4, 20}},
      {.waiting_s = 1, .before_s = 90, .backward_s = 16, .after_s = 1, .ready_s = {8, 12}}};
  const StepProfile p = profile_of(steps);
  EXPECT_DOUBLE_EQ(p.waiting_s, 1);
  EXPECT_DOUBLE_EQ(p.before_s, 5);
  EXPECT_DOUBLE_EQ(p.backward_s, 16);
  EXPECT_DOUBLE_EQ(p.after_s, 1);
  ASSERT_EQ(p.buckets.size(), 2U);
  EXPECT_DOUBLE_EQ(p.buckets[0].ready, 0.2);
  EXPECT_DOUBLE_EQ(p.buckets[1].ready, 1);
  EXPECT_TRUE(profile_of({}).buckets.empty());
}

// The exchange of a step is expected to take 5 s; of the steps that were looked at, two have this layout.
TEST(Prediction, CrowdingIsWhatTheFirstStepsTookOnAverage) {
  const StepProfile expected = profile({{0.2, 2}, {0.5, 3}});
  const std::vector<StepTimes> steps = {{.ready_s = {1, 2}, .exchange_s = 6},
                                        {.ready_s = {1, 2}, .exchange_s = 24},
                                        {.ready_s = {1}, .exchange_s = 1000}};
  EXPECT_DOUBLE_EQ(crowding_of(steps, expected).slower, 3);
  EXPECT_DOUBLE_EQ(crowding_of({}, expected).slower, 1);
  EXPECT_DOUBLE_EQ(crowding_of(std::span(steps).first(1), profile({{0.2, 50}, {0.5, 50}})).slower, 1);
  EXPECT_DOUBLE_EQ(crowding_of(steps, profile({{0.2, 0}, {0.5, 0}})).slower, 1);
}

}  // namespace
}  // namespace lockstep
