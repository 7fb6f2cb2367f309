// Lanes whose samples weigh differently, and lanes and steps that weigh nothing. Threads as ranks.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::on_threads;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;

using Weight = std::function<double(std::int64_t)>;

struct WeightedExamples final : SmallExamples {
  WeightedExamples(std::int64_t count_, Weight weight_)
      : SmallExamples(count_), weight_of(std::move(weight_)) {}
  std::vector<double> weights(std::span<const std::int64_t> indices) const override {
    std::vector<double> all;
    for (const std::int64_t i : indices) all.push_back(weight_of(i));
    return all;
  }
  Weight weight_of;
};

enum class Norm { trained, frozen };

// A lane's loss is the weighted mean of its samples', which is NaN where they weigh nothing.
void train_on(Loader steps, DataParallel& ddp, SmallNet& net, SGD& optimizer) {
  for (auto& step : steps) {
    for (auto& lane : step) {
      auto scope = ddp.lane(lane);
      const auto losses = (net.forward(lane.data) - lane.target).square().mean(1);
      ((losses * lane.weights).sum() / lane.weight).backward();
    }
    optimizer.step();
  }
}

std::vector<torch::Tensor> train(int workers, int lanes, int lane_batch, const Weight& weight,
                                 Norm norm = Norm::trained, std::int64_t examples = 64) {
  return alike_on(thread_groups(workers, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    if (norm == Norm::frozen) net->norm->eval();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.5, .momentum = 0.9});
    train_on(loader(std::make_shared<WeightedExamples>(examples, weight), group,
                    {.lanes = lanes, .lane_batch = lane_batch, .shuffle = false, .epochs = 2}),
             ddp, *net, optimizer);
    ddp.check_replicas();
    return copies(*net);
  });
}

double uneven(std::int64_t i) { return static_cast<double>(i % 7) / 3; }

TEST(Weights, TheSameBitsForEveryNumberOfWorkers) {
  // Lane 2 of every step, lanes 4 to 7 of the first, and the whole second step weigh nothing.
  const Weight gaps = [](std::int64_t i) {
    const std::int64_t step = i / 32, lane = i % 32 / 4;
    return lane == 2 || (step == 0 && lane >= 4) || step == 1 ? 0.0 : uneven(i) + 0.1;
  };
  for (const Weight& weight : {Weight(uneven), gaps})
    for (const int lanes : {6, 8}) {
      const auto alone = train(1, lanes, 4, weight, Norm::trained, 96);
      for (const auto& tensor : alone) EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>());
      for (const int workers : {2, 3, 4})
        EXPECT_TRUE(equal(train(workers, lanes, 4, weight, Norm::trained, 96), alone))
            << workers << " workers, " << lanes << " lanes";
    }
}

// Trains two epochs of `loading`, in two parts: the second goes on at step `cut` with a loader of its own.
std::vector<torch::Tensor> train_in_parts(int workers, std::int64_t examples, const Weight& weight,
                                          LoaderOptions loading, std::int64_t cut) {
  return alike_on(thread_groups(workers, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.5, .momentum = 0.9});
    const auto dataset = std::make_shared<WeightedExamples>(examples, weight);
    for (const bool resumed : {false, true}) {
      LoaderOptions part = loading;
      if (resumed) part.first_step = cut;
      if (!resumed) part.steps = cut;
      train_on(loader(dataset, group, part), ddp, *net, optimizer);
    }
    ddp.check_replicas();
    return copies(*net);
  });
}

// However an epoch ends, wherever in it the run goes on, and whoever makes the batches.
TEST(Weights, TheSameBitsForEveryLastStepAndPartAndThread) {
  // The first epoch's last step weighs nothing in the lanes of some workers, whatever their number.
  const Weight gaps = [](std::int64_t i) { return i % 11 < 2 || i >= 24 ? 0.0 : uneven(i) + 0.1; };
  for (const LastStep last_step : {LastStep::short_, LastStep::drop, LastStep::wrap})
    for (const std::int64_t examples : {41, 29, 13}) {
      if (last_step == LastStep::drop && examples < 24) continue;  // less than one step
      LoaderOptions loading{
          .lanes = 6, .lane_batch = 4, .shuffle = examples != 29, .last_step = last_step, .epochs = 3};
      const auto alone = train_in_parts(1, examples, gaps, loading, 1);
      for (const auto& tensor : alone) EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>());
      EXPECT_FALSE(equal(alone, copies(SmallNet())));
      loading.threads = 3;
      for (const int workers : {1, 2, 3, 4, 6})
        EXPECT_TRUE(equal(train_in_parts(workers, examples, gaps, loading, 2), alone))
            << workers << " workers, " << examples << " examples, " << to_string(last_step);
    }
}

// However the samples are cut into lanes: the weighted mean over the step's samples.
TEST(Weights, AStepIsTheWeightedMeanOverItsSamples) {
  const auto whole = train(1, 1, 32, uneven, Norm::frozen);
  for (const int lanes : {4, 8}) {
    const auto cut = train(2, lanes, 32 / lanes, uneven, Norm::frozen);
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_TRUE(torch::allclose(cut[i], whole[i], 1e-4, 1e-6)) << i;
  }
  const auto unweighted = train(
      1, 1, 32, [](std::int64_t) { return 1.0; }, Norm::frozen);
  EXPECT_FALSE(torch::allclose(unweighted[0], whole[0], 1e-3, 1e-5));
}

// Sequences of one to four tokens, padded with numbers that must not count. An example weighs its tokens.
struct Sentences final : Dataset {
  static std::int64_t length(std::int64_t i) { return 1 + (i * i + i / 3) % 4; }
  std::int64_t size() const override { return 23; }
  Batch get(std::span<const std::int64_t> indices, RandomStream*) const override {
    std::vector<torch::Tensor> rows, masks;
    for (const std::int64_t i : indices) {
      rows.push_back(
          torch::cos(torch::arange(4 * 6).to(torch::kFloat64) * (0.1 + 0.07 * static_cast<double>(i)))
              .view({4, 6}));
      masks.push_back((torch::arange(4) < length(i)).to(torch::kFloat64));
    }
    return {.data = torch::stack(rows), .target = torch::stack(masks)};
  }
  std::vector<double> weights(std::span<const std::int64_t> indices) const override {
    std::vector<double> all;
    for (const std::int64_t i : indices) all.push_back(static_cast<double>(length(i)));
    return all;
  }
};

struct TokenNet : torch::nn::Module {
  TokenNet() {
    to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters())
      p.copy_(torch::linspace(-0.4, 0.5, p.numel(), torch::kFloat64).view(p.sizes()));
  }
  // The sum of the tokens' losses.
  torch::Tensor loss(const Batch& batch) {
    return (second->forward(torch::tanh(first->forward(batch.data))).square().mean(2) * batch.target).sum();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 2));
};

// Lanes of unequal numbers of tokens, and a last step that fills no lane but some: each step's gradient is
// that of the mean over all its tokens, as one batch has it.
TEST(Weights, TheGradientIsThatOfTheJoinedBatchsMeanOverTokens) {
  const auto sentences = std::make_shared<Sentences>();
  for (const int workers : {1, 2, 3})
    for (const int lanes : {3, 5, 8})
      on_threads(thread_groups(workers, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
        auto net = std::make_shared<TokenNet>();
        DataParallel ddp(net, group);
        SGD optimizer(ddp, {.lr = 0});
        std::int64_t seen = 0, steps = 0;
        for (auto& step :
             loader(sentences, group,
                    {.lanes = lanes, .lane_batch = 2, .shuffle = false, .last_step = LastStep::short_})) {
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            (net->loss(lane) / lane.weight).backward();
          }
          std::vector<std::int64_t> examples(static_cast<std::size_t>(step.samples));
          std::iota(examples.begin(), examples.end(), seen);
          seen += step.samples;
          TokenNet joined;
          const Batch batch = sentences->get(examples, nullptr);
          (joined.loss(batch) / batch.target.sum()).backward();
          EXPECT_EQ(step.total_weight, batch.target.sum().item<double>());
          for (std::size_t i = 0; i < joined.parameters().size(); ++i)
            EXPECT_TRUE(
                torch::allclose(net->parameters()[i].grad(), joined.parameters()[i].grad(), 1e-12, 1e-14))
                << workers << " workers, " << lanes << " lanes, step " << steps << ", parameter " << i;
          optimizer.step();
          ++steps;
        }
        EXPECT_EQ(seen, sentences->size());
        EXPECT_GT(steps, 1);
      });
}

TEST(Weights, AStepOfWeightZeroChangesNothing) {
  const auto before = copies(SmallNet());
  for (const int workers : {1, 2}) {
    const auto after = train(workers, 8, 4, [](std::int64_t) { return 0.0; });
    EXPECT_TRUE(equal(after, before)) << workers;
  }
}

}  // namespace
}  // namespace lockstep
