// The noise scale of gradients whose noise is known, and what is made of it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/report/noise_scale.h"
#include "plan/batch.h"
#include "report/noise_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

double square(const std::vector<double>& g) {
  double sum = 0;
  for (const double x : g) sum += x * x;
  return sum;
}

// Every outcome of three examples in lanes of one and two, whose gradients are a or b alike often: the mean
// of the estimates is exact, though the lanes differ in size.
TEST(NoiseScale, AStepIsUnbiased) {
  const std::array<double, 2> a = {3, -1}, b = {1, 2};
  NoiseSample mean;
  for (int outcome = 0; outcome < 8; ++outcome) {
    const auto example = [&](int i) { return (outcome >> i & 1) == 0 ? a : b; };
    const std::vector<double> one = {example(0)[0], example(0)[1]};
    const std::vector<double> two = {(example(1)[0] + example(2)[0]) / 2,
                                     (example(1)[1] + example(2)[1]) / 2};
    const std::vector<double> all = {(one[0] + 2 * two[0]) / 3, (one[1] + 2 * two[1]) / 3};
    for (const double unit : {1.0, 7.0}) {  // weights are samples, or tokens
      const auto sample = noise_of_step(
          std::array<LaneSquare, 3>{{{unit, square(one)}, {0, 99}, {2 * unit, square(two)}}}, square(all), 3);
      ASSERT_TRUE(sample);
      mean.gradient_square += sample->gradient_square / 16;
      mean.trace += sample->trace / 16;
    }
  }
  EXPECT_NEAR(mean.gradient_square, 2 * 2 + 0.5 * 0.5, 1e-12);  // of (a + b) / 2
  EXPECT_NEAR(mean.trace, 1 + 1.5 * 1.5, 1e-12);                // of ±(a − b) / 2
}

TEST(NoiseScale, NothingOfAStepThatTellsNothing) {
  const auto of = [](const std::vector<LaneSquare>& lanes, double mean) {
    return noise_of_step(lanes, mean, 8);
  };
  EXPECT_FALSE(of({}, 1));
  EXPECT_FALSE(of({{1, 2}}, 1));
  EXPECT_FALSE(of({{1, 2}, {0, 2}}, 1));
  EXPECT_FALSE(of({{1, 2}, {1, INFINITY}}, 1));
  EXPECT_FALSE(of({{1, 2}, {1, 2}}, NAN));
  EXPECT_TRUE(of({{1, 2}, {1, 2}}, 1));
  EXPECT_FALSE(NoiseScale().figures());
}

// Steps of eight lanes of four examples, with gradients around `gradient` of variance 1 in 30 dimensions.
NoiseScale simulated(double gradient, int steps, std::mt19937_64& random) {
  constexpr int kLanes = 8, kDimensions = 30;
  std::normal_distribution<double> noise(0, 0.5);  // of a lane's mean
  NoiseScale scale;
  for (int s = 0; s < steps; ++s) {
    std::vector<LaneSquare> lanes;
    std::vector<double> mean(kDimensions, 0);
    for (int lane = 0; lane < kLanes; ++lane) {
      std::vector<double> g;
      for (int d = 0; d < kDimensions; ++d) g.push_back(gradient + noise(random));
      for (int d = 0; d < kDimensions; ++d)
        mean[static_cast<std::size_t>(d)] += g[static_cast<std::size_t>(d)] / kLanes;
      lanes.push_back({1, square(g)});
    }
    scale.add(*noise_of_step(lanes, square(mean), kLanes * 4));
  }
  return scale;
}

TEST(NoiseScale, FindsWhatIsThereAndHowSureItIs) {
  std::mt19937_64 random(1);
  const double gradient = 0.2, truth = 1 / (gradient * gradient);  // tr Σ / |G|² = 25
  const NoiseFigures many = *simulated(gradient, 20000, random).figures();
  EXPECT_EQ(many.steps, 10000);
  EXPECT_NEAR(many.scale, truth, truth / 50);
  EXPECT_LT(many.high - many.low, truth / 10);
  int covered = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const NoiseFigures figures = *simulated(gradient, 60, random).figures();
    EXPECT_LE(figures.low, figures.scale);
    EXPECT_GE(figures.high, figures.scale);
    covered += figures.low <= truth && truth <= figures.high ? 1 : 0;
  }
  EXPECT_GE(covered, 400 * 92 / 100);  // 95 %, within three standard errors
  EXPECT_LE(covered, 400 * 985 / 1000);
  // No gradient at all: no upper bound, and the lower one is far up.
  const NoiseFigures none = *simulated(0, 400, random).figures();
  EXPECT_EQ(none.high, INFINITY);
  EXPECT_GT(none.low, 50);
}

// A step that explodes is over when the half that counts begins: what came before leaves nothing behind.
TEST(NoiseScale, AnExplosionInTheFirstHalfLeavesNoTrace) {
  NoiseScale noise, calm;
  for (int i = 0; i < 60; ++i) {
    const NoiseSample sample{.gradient_square = 2 + 0.3 * std::sin(3.0 * i),
                             .trace = 30 + 4 * std::cos(5.0 * i)};
    noise.add(i == 5 ? NoiseSample{.gradient_square = 1e22, .trace = 3e23} : sample);
    calm.add(sample);
  }
  EXPECT_NEAR(noise.figures()->scale, calm.figures()->scale, 1e-9);
  EXPECT_NEAR(noise.figures()->low, calm.figures()->low, 1e-9);
  EXPECT_NEAR(noise.figures()->high, calm.figures()->high, 1e-9);
}

// The ends of the interval are where the difference of means is t standard errors.
TEST(NoiseScale, TheIntervalIsFiellers) {
  NoiseScale noise;
  std::vector<NoiseSample> used;
  for (int i = 0; i < 20; ++i) {
    const NoiseSample sample{.gradient_square = 2 + 0.3 * std::sin(3.0 * i),
                             .trace = 30 + 4 * std::cos(5.0 * i)};
    noise.add(sample);
    if (i >= 10) used.push_back(sample);
  }
  const NoiseFigures figures = *noise.figures();
  EXPECT_EQ(figures.steps, 10);
  for (const double ratio : {figures.low, figures.high}) {
    double mean = 0, variance = 0;
    for (const NoiseSample& s : used) mean += (s.trace - ratio * s.gradient_square) / 10;
    for (const NoiseSample& s : used) variance += std::pow(s.trace - ratio * s.gradient_square - mean, 2) / 9;
    EXPECT_NEAR(std::abs(mean) / std::sqrt(variance / 10), 2.262, 1e-9);
  }
  EXPECT_EQ(to_string(figures), to_string(*noise_from_json(to_json(figures))));
  NoiseScale few;
  few.add({.gradient_square = 2, .trace = 30});
  EXPECT_EQ(few.figures()->scale, 15);
  EXPECT_TRUE(std::isnan(few.figures()->low));
  EXPECT_TRUE(std::isnan(noise_from_json(to_json(*few.figures()))->high));
  const NoiseFigures open{.scale = INFINITY, .low = 70, .high = INFINITY, .steps = 30};
  EXPECT_EQ(noise_from_json(to_json(open))->high, INFINITY);
  EXPECT_EQ(noise_from_json(to_json(open))->scale, INFINITY);
  EXPECT_FALSE(noise_from_json(nullptr));
}

TEST(PlanBatch, FollowsTheModel) {
  // At the critical batch twice the fewest of both.
  EXPECT_EQ(steps_over_fewest(64, 64), 2);
  EXPECT_EQ(examples_over_fewest(64, 64), 2);
  EXPECT_EQ(steps_over_fewest(32, 96), 4);
  EXPECT_DOUBLE_EQ(examples_over_fewest(32, 96), 4.0 / 3);
  const BatchAdvice advice =
      advise_on_batch({.batch = 64,
                       .workers = 2,
                       .steps = 600,
                       .noise = {.scale = 192, .low = 128, .high = 256, .steps = 300}});
  EXPECT_EQ(advice.worker_batch, 32);
  EXPECT_EQ(advice.workers, 6);
  EXPECT_EQ(advice.workers_low, 4);
  EXPECT_EQ(advice.workers_high, 8);
  ASSERT_EQ(advice.rows.size(), 5U);
  const double fewest_steps = 600 / steps_over_fewest(64, 192);
  const double fewest_examples = 600 * 64 / examples_over_fewest(64, 192);
  for (std::size_t i = 0; i < advice.rows.size(); ++i) {
    const BatchRow& row = advice.rows[i];
    EXPECT_EQ(row.batch, 64 << i);
    EXPECT_EQ(row.workers, 2 << i);
    EXPECT_NEAR(row.steps, fewest_steps * (1 + 192 / row.batch), 1e-9);
    EXPECT_NEAR(row.examples, fewest_examples * (1 + row.batch / 192), 1e-6);
    EXPECT_LE(row.efficiency_low, row.efficiency);
    EXPECT_GE(row.efficiency_high, row.efficiency);
  }
  EXPECT_NE(describe(advice, false).find("up to about 6 of 32 examples each (4 to 8)"), std::string::npos)
      << describe(advice, false);
}

TEST(PlanBatch, TakesWhateverScaleThereIs) {
  const BatchAdvice open =
      advise_on_batch({.batch = 64, .steps = 600, .noise = {.scale = INFINITY, .low = NAN, .high = NAN}});
  ASSERT_EQ(open.rows.size(), 10U);  // 512 times the batch: 600 steps have become 1.2
  for (const BatchRow& row : open.rows) EXPECT_EQ(row.efficiency, 1);
  EXPECT_NE(describe(open, false).find("any number of 64 examples"), std::string::npos)
      << describe(open, false);
  EXPECT_EQ(describe(open, false).find("with more"), std::string::npos) << describe(open, false);
  const BatchAdvice above = advise_on_batch(
      {.batch = 64, .steps = 600, .noise = {.scale = INFINITY, .low = 640, .high = INFINITY}});
  EXPECT_NE(describe(above, false).find("any number of 64 examples each (10 or more)\n"), std::string::npos)
      << describe(above, false);
  EXPECT_TRUE(to_json(open).at("workers").is_null());
  const BatchAdvice none = advise_on_batch({.batch = 64, .steps = 600, .noise = {}});
  for (const BatchRow& row : none.rows) EXPECT_EQ(row.steps, 600);
  EXPECT_EQ(none.workers, 1);
}

TEST(PlanBatch, ReadsARunOrSaysWhatIsMissing) {
  std::string name = (fs::temp_directory_path() / "lockstep-plan-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  const auto refusal = [&] {
    try {
      read_measured_run(folder);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto write = [&](const char* file, const std::string& text) { std::ofstream(folder / file) << text; };
  EXPECT_NE(refusal().find("holds no run"), std::string::npos) << refusal();
  // Whoever copies such a value needs more stack than there is.
  write("config.json", "{\"workers\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  EXPECT_NE(refusal(), "accepted");
  write("config.json", R"({"model": "mlp", "data": "synthetic", "lanes": 4, "lane_batch": 8, "workers": 2})");
  EXPECT_NE(refusal().find("--measure noise"), std::string::npos) << refusal();
  write("noise.csv",
        "step,gradient_square,trace,noise_scale,low,high\n1,2,64,32,nan,nan\n2,2,x,32,nan,nan\n");
  EXPECT_NE(refusal().find("row 2 has no numbers"), std::string::npos) << refusal();
  write("noise.csv", "mine\n1\n");
  EXPECT_NE(refusal().find("no columns"), std::string::npos) << refusal();
  write("noise.csv", "step,gradient_square,trace,noise_scale,low,high\n1,5,5,1,nan,nan\n2,2,64,32,nan,nan\n");
  const MeasuredRun run = read_measured_run(folder);
  EXPECT_EQ(run.batch, 32);
  EXPECT_EQ(run.workers, 2);
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.noise.scale, 32);
  fs::remove_all(folder);
  EXPECT_NE(refusal().find("is no folder"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace lockstep
