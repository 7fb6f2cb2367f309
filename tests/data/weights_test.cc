// Batches of any number of tensors, and examples that weigh differently.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "comm/expect_error.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

using testing::expect_error;

// Example i is the number i, with its square and a weight of i % 5 (some weigh nothing).
class Weighted final : public Dataset {
 public:
  explicit Weighted(std::int64_t size, std::map<std::int64_t, double> wrong = {})
      : size_(size), wrong_(std::move(wrong)) {}
  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
    const auto numbers = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {
        .data = numbers, .target = -numbers, .more = {{"mask", numbers > 3}, {"square", numbers * numbers}}};
  }
  static double weight_of(std::int64_t index) { return static_cast<double>(index % 5) / 3; }
  std::vector<double> weights(std::span<const std::int64_t> indices) const override {
    std::vector<double> all;
    for (const std::int64_t i : indices) all.push_back(wrong_.contains(i) ? wrong_.at(i) : weight_of(i));
    return all;
  }

 private:
  std::int64_t size_;
  std::map<std::int64_t, double> wrong_;
};

TEST(Batch, HoldsAnyNumberOfTensorsByName) {
  Loader loader(std::make_shared<Weighted>(12), 0, 1, {.lanes = 2, .lane_batch = 3});
  for (Step& step : loader)
    for (const Lane& lane : step.lanes) {
      EXPECT_TRUE(torch::equal(lane["square"], lane.data * lane.data));
      EXPECT_TRUE(torch::equal(lane["mask"], lane.data > 3));
      EXPECT_TRUE(lane["data"].is_same(lane.data));
      EXPECT_TRUE(lane["target"].is_same(lane.target));
      expect_error<UsageError>([&] { (void)lane["masks"]; }, {"'masks'", "data, target, mask, square"});
    }
}

TEST(Batch, OfTwoTensorsIsWrittenAsItWas) {
  const torch::Tensor one = torch::ones(2);
  const Batch batch{one, one};
  EXPECT_TRUE(batch["target"].is_same(batch.data));
  EXPECT_TRUE(batch.more.empty());
}

// By lane: its weight, as every worker that knows of it says.
TEST(Weights, ALaneWeighsWhatItsSamplesDoWhoeverCarriesIt) {
  const auto dataset = std::make_shared<Weighted>(23);
  for (const LastStep last_step : {LastStep::short_, LastStep::drop, LastStep::wrap}) {
    std::map<std::pair<std::int64_t, int>, std::pair<double, double>> first;
    for (const int workers : {1, 2, 3, 6}) {
      std::map<std::pair<std::int64_t, int>, std::pair<double, double>> found;
      for (int rank = 0; rank < workers; ++rank) {
        Loader loader(dataset, rank, workers,
                      {.lanes = 6, .lane_batch = 2, .seed = 4, .last_step = last_step, .epochs = 2});
        for (Step& step : loader)
          for (const Lane& lane : step.lanes) {
            found[{lane.step, lane.index}] = {lane.weight, lane.total_weight};
            double sum = 0;
            std::vector<float> each;
            for (std::int64_t i = 0; i < lane.samples; ++i) {
              sum += Weighted::weight_of(lane.data[i].item<std::int64_t>());
              each.push_back(static_cast<float>(Weighted::weight_of(lane.data[i].item<std::int64_t>())));
            }
            EXPECT_EQ(lane.weight, sum);
            EXPECT_TRUE(torch::equal(lane.weights, torch::tensor(each)));
          }
      }
      if (first.empty()) first = found;
      EXPECT_EQ(found, first) << workers << " workers, " << to_string(last_step);
    }
    std::map<std::int64_t, double> totals;
    for (const auto& [key, weights] : first) totals[key.first] += weights.first;
    for (const auto& [key, weights] : first) EXPECT_EQ(weights.second, totals[key.first]);
  }
}

TEST(Weights, ConstantOnesAreAsBefore) {
  Loader loader(std::make_shared<Weighted>(4, std::map<std::int64_t, double>{}), 0, 1, {.lane_batch = 4});
  EXPECT_TRUE(loader.next()->lanes[0].weights.defined());
  struct Plain final : Dataset {
    std::int64_t size() const override { return 4; }
    Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
      const auto zeros = torch::zeros({static_cast<std::int64_t>(indices.size())});
      return {zeros, zeros};
    }
    double weight() const override { return 7; }
  };
  Loader plain(std::make_shared<Plain>(), 0, 1, {.lane_batch = 4});
  const Lane& lane = plain.next()->lanes[0];
  EXPECT_FALSE(lane.weights.defined());
  EXPECT_EQ(lane.weight, 1);
}

TEST(Weights, BadOnesAreNamed) {
  const auto load = [](double weight) {
    Loader loader(std::make_shared<Weighted>(8, std::map<std::int64_t, double>{{5, weight}}), 0, 1,
                  {.lanes = 2, .lane_batch = 4, .shuffle = false});
    (void)loader.next();
  };
  expect_error<UsageError>([&] { load(-1); }, {"step 0, lane 1", "example 5", "-1", "0 or more"});
  expect_error<UsageError>([&] { load(NAN); }, {"example 5", "nan"});
  expect_error<UsageError>([&] { load(INFINITY); }, {"example 5", "inf", "finite"});
  // A lane's own weights are f32, and none that is above 0 may become 0 or infinite there.
  expect_error<UsageError>([&] { load(1e39); }, {"example 5", "1e+39", "f32"});
  expect_error<UsageError>([&] { load(1e-46); }, {"example 5", "1e-46", "f32"});
  struct Few final : Dataset {
    std::int64_t size() const override { return 8; }
    Batch get(std::span<const std::int64_t> /*indices*/, RandomStream* /*random*/) const override {
      return {};
    }
    std::vector<double> weights(std::span<const std::int64_t> /*indices*/) const override { return {1}; }
  };
  Loader few(std::make_shared<Few>(), 0, 1, {.lane_batch = 4});
  expect_error<UsageError>([&] { (void)few.next(); }, {"1 numbers for 4 examples"});
}

}  // namespace
}  // namespace lockstep
