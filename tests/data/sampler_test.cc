// The sampler over a grid: nothing lost, nothing twice, shapes as promised.
#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "comm/expect_error.h"

namespace lockstep {
namespace {

using testing::expect_error;

void check_epoch(const Sampler& sampler, std::int64_t epoch) {
  const SamplerOptions& options = sampler.options();
  std::vector<int> seen(static_cast<std::size_t>(sampler.size()), 0);
  for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
    const auto sizes = sampler.lane_sizes(step);
    ASSERT_EQ(std::ssize(sizes), options.lanes);
    EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend())) << "zeros last";
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    EXPECT_GT(total, 0);
    const std::int64_t full = std::int64_t{options.lanes} * options.lane_batch;
    if (step + 1 < sampler.steps_per_epoch()) {
      EXPECT_EQ(total, full);
      EXPECT_EQ(sizes.front(), sizes.back());
    } else {
      EXPECT_LE(total, full + 1);
    }
    for (int lane = 0; lane < options.lanes; ++lane) {
      const std::int64_t size = sizes[static_cast<std::size_t>(lane)];
      // Alone only when there is nobody else, or when every lane is.
      if (size == 1 && options.lane_batch > 1) {
        EXPECT_EQ(sampler.size(), 1);
      }
      // One more than lane_batch at most: the single one that joined, or the odd one of a lane of two.
      EXPECT_LE(size, options.lane_batch + (options.lane_batch > 1 ? 1 : 0));
      const auto examples = sampler.lane(epoch, step, lane);
      ASSERT_EQ(std::ssize(examples), size);
      for (const std::int64_t example : examples) ++seen.at(static_cast<std::size_t>(example));
    }
  }
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST(Sampler, ShortLosesNothingAndTakesNothingTwice) {
  for (const std::int64_t size : {1, 2, 3, 5, 16, 17, 31, 63, 64, 65, 66, 97, 200, 1025})
    for (const int lanes : {1, 2, 3, 4, 7, 8, 16})
      for (const int lane_batch : {1, 2, 3, 4, 8, 32})
        for (const bool shuffle : {true, false}) {
          SCOPED_TRACE(::testing::Message() << size << " examples, " << lanes << " lanes of " << lane_batch);
          const Sampler sampler(size, {.lanes = lanes,
                                       .lane_batch = lane_batch,
                                       .seed = 3,
                                       .shuffle = shuffle,
                                       .last_step = LastStep::short_});
          for (const std::int64_t epoch : {0, 1, 7}) check_epoch(sampler, epoch);
        }
}

TEST(Sampler, SpreadsTheRestOverLanesOfTwoOrMore) {
  const auto last = [](std::int64_t size, int lanes, int lane_batch) {
    const Sampler sampler(size, {.lanes = lanes, .lane_batch = lane_batch, .last_step = LastStep::short_});
    return sampler.lane_sizes(sampler.steps_per_epoch() - 1);
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(last(32 + 9, 4, 8), (Sizes{3, 2, 2, 2}));
  EXPECT_EQ(last(32 + 5, 4, 8), (Sizes{3, 2, 0, 0}));
  EXPECT_EQ(last(32 + 2, 4, 8), (Sizes{2, 0, 0, 0}));
  EXPECT_EQ(last(32 + 1, 4, 8), (Sizes{9, 8, 8, 8}));
  EXPECT_EQ(last(32 + 31, 4, 8), (Sizes{8, 8, 8, 7}));
  EXPECT_EQ(last(32, 4, 8), (Sizes{8, 8, 8, 8}));
  EXPECT_EQ(last(1, 4, 8), (Sizes{1, 0, 0, 0}));
  EXPECT_EQ(last(5, 4, 1), (Sizes{1, 0, 0, 0}));
  const auto steps = [](std::int64_t size) {
    return Sampler(size, {.lanes = 4, .lane_batch = 8, .last_step = LastStep::short_}).steps_per_epoch();
  };
  EXPECT_EQ(steps(33), 1);
  EXPECT_EQ(steps(34), 2);
}

std::vector<std::int64_t> epoch_of(const Sampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
    for (int lane = 0; lane < sampler.options().lanes; ++lane) {
      const auto part = sampler.lane(epoch, step, lane);
      all.insert(all.end(), part.begin(), part.end());
    }
  return all;
}

// Each step is full, and the epoch is its order up to the last full step (drop), or goes on with its
// beginning.
TEST(Sampler, DropAndWrapGiveFullStepsOfTheSameOrder) {
  for (const std::int64_t size : {1, 2, 5, 16, 17, 63, 64, 65, 200})
    for (const int lanes : {1, 3, 4, 8})
      for (const int lane_batch : {1, 2, 8}) {
        SCOPED_TRACE(::testing::Message() << size << " examples, " << lanes << " lanes of " << lane_batch);
        const std::int64_t full = std::int64_t{lanes} * lane_batch;
        const auto order = epoch_order(size, 3, 2);
        for (const LastStep last_step : {LastStep::drop, LastStep::wrap}) {
          const bool wraps = last_step == LastStep::wrap;
          if (!wraps && size < full) continue;
          const Sampler sampler(
              size, {.lanes = lanes, .lane_batch = lane_batch, .seed = 3, .last_step = last_step});
          ASSERT_EQ(sampler.steps_per_epoch(), wraps ? (size + full - 1) / full : size / full);
          for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
            EXPECT_EQ(sampler.lane_sizes(step),
                      std::vector<std::int64_t>(static_cast<std::size_t>(lanes), lane_batch));
          const auto seen = epoch_of(sampler, 2);
          ASSERT_EQ(std::ssize(seen), sampler.steps_per_epoch() * full);
          for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], order[i % order.size()]);
        }
      }
}

TEST(Sampler, DropNeedsOneFullStep) {
  expect_error<UsageError>([] { Sampler(7, {.lanes = 2, .lane_batch = 4, .last_step = LastStep::drop}); },
                           {"7 examples", "2 lanes × 4", "drop", "8 examples or more", "short or wrap"});
}

TEST(Sampler, LastStepsHaveNames) {
  for (const LastStep last_step : {LastStep::short_, LastStep::drop, LastStep::wrap})
    EXPECT_EQ(parse_last_step(to_string(last_step)), last_step);
  expect_error<UsageError>([] { parse_last_step("keep"); }, {"'keep'", "short, drop, wrap"});
}

TEST(Sampler, EpochsAndSeedsDifferAndStayWhatTheyAre) {
  const Sampler a(50, {.lanes = 2, .lane_batch = 8, .seed = 1, .last_step = LastStep::short_});
  const Sampler b(50, {.lanes = 2, .lane_batch = 8, .seed = 2, .last_step = LastStep::short_});
  const auto zero = epoch_of(a, 0);
  EXPECT_NE(zero, epoch_of(a, 1));
  EXPECT_NE(zero, epoch_of(b, 0));
  EXPECT_EQ(zero, epoch_of(a, 0)) << "after another epoch";
  EXPECT_EQ(zero, epoch_of(Sampler(50, {.lanes = 5, .lane_batch = 2, .seed = 1}), 0)) << "however it is cut";
}

TEST(Sampler, TheOrderIsTheSameOnEveryMachine) {
  const Sampler sampler(10, {.lanes = 1, .lane_batch = 10, .seed = 1234});
  EXPECT_EQ(sampler.lane(3, 0, 0), (std::vector<std::int64_t>{5, 9, 3, 0, 2, 7, 8, 6, 4, 1}));
}

TEST(Sampler, WithoutShuffleTheOrderIsThatOfTheFiles) {
  const Sampler sampler(20, {.lanes = 2, .lane_batch = 3, .shuffle = false});
  EXPECT_EQ(sampler.lane(5, 1, 1), (std::vector<std::int64_t>{9, 10, 11}));
}

// Every example comes first about equally often: 4000 epochs of 8, so 500 each with a deviation of 21.
TEST(Sampler, ShufflesEvenly) {
  const Sampler sampler(8, {.lanes = 1, .lane_batch = 1, .seed = 7});
  std::vector<int> first(8, 0);
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch)
    ++first[static_cast<std::size_t>(sampler.lane(epoch, 0, 0).front())];
  for (const int times : first) EXPECT_NEAR(times, 500, 120);
}

TEST(Sampler, NamesBadOptions) {
  expect_error<UsageError>([] { Sampler(0, {}); }, {"0 examples"});
  expect_error<UsageError>([] { Sampler(5, {.lanes = 0}); }, {"lanes = 0"});
  expect_error<UsageError>([] { Sampler(5, {.lane_batch = -1}); }, {"lane_batch = -1"});
  const Sampler sampler(5, {.lanes = 2, .lane_batch = 1});
  expect_error<UsageError>([&] { sampler.lane(0, 3, 0); }, {"step 3", "0 to 2"});
  expect_error<UsageError>([&] { sampler.lane(0, 0, 2); }, {"lane 2", "0 to 1"});
  expect_error<UsageError>([&] { sampler.lane(-1, 0, 0); }, {"epoch -1"});
}

}  // namespace
}  // namespace lockstep
