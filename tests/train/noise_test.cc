// --measure noise: lanes' gradients in a run, on any number of workers.
#include "train/noise.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <nlohmann/json.hpp>

#include "lockstep/parallel/strategies.h"
#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

constexpr int kLanes = 8, kSamples = 5;

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(3, 7), torch::nn::Linear(7, 2));
  model->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& p : model->parameters())
    p.copy_(torch::sin(torch::arange(p.numel(), torch::kFloat64)).view(p.sizes()));
  return model;
}

torch::Tensor lane_loss(torch::nn::Sequential& model, int lane) {
  const torch::Tensor x =
      torch::cos(torch::arange(kSamples * 3, torch::kFloat64) * (lane + 1)).view({kSamples, 3});
  return model->forward(x).pow(2).sum(1).mean();
}

// One lane after the other, without us: the covariance of lanes' gradients around their mean.
NoiseSample reference() {
  torch::nn::Sequential model = small_model();
  std::vector<torch::Tensor> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& g : torch::autograd::grad({lane_loss(model, lane)}, model->parameters()))
      flat.push_back(g.flatten());
    lanes.push_back(torch::cat(flat));
  }
  const torch::Tensor all = torch::stack(lanes), mean = all.mean(0);
  const double trace = kSamples * ((all - mean).pow(2).sum() / (kLanes - 1)).item<double>();
  return {.gradient_square = mean.pow(2).sum().item<double>() - trace / (kLanes * kSamples), .trace = trace};
}

TEST(NoiseMeter, AgreesWithLanesOneByOne) {
  const NoiseSample expected = reference();
  ASSERT_GT(expected.trace, 0);
  std::vector<NoiseSample> found;
  for (const char* strategy_name : {"ddp", "zero1"})
    for (const int workers : {1, 2, 3, 4, 8}) {
      std::optional<NoiseSample> sample;
      on_threads(thread_groups(workers), [&](const Group& group) {
        torch::nn::Sequential model = small_model();
        const auto strategy = make_strategy(strategy_name, model.ptr(), group, {.measure_lanes = true});
        NoiseMeter meter("noise");
        const LaneRange own = lanes_of(group.rank(), workers, kLanes);
        for (int i = 0; i < own.count; ++i) {
          const auto scope = strategy->lane(
              {.index = own.first + i, .total_weight = kLanes, .first = i == 0, .last = i + 1 == own.count});
          lane_loss(model, own.first + i).backward();
        }
        strategy->synchronize();
        meter.take(*strategy);
        std::vector<double> squares(kLanes, 0);
        for (int i = 0; i < own.count; ++i)
          squares[static_cast<std::size_t>(own.first + i)] = meter.lane_square(static_cast<std::size_t>(i));
        group.all_reduce(buffer(squares));
        for (const double square : squares) meter.add(1, square);
        const auto result = meter.finish(kLanes * kSamples);
        if (group.rank() == 0) sample = result;
      });
      ASSERT_TRUE(sample);
      EXPECT_NEAR(sample->trace, expected.trace, 1e-11 * expected.trace) << strategy_name << workers;
      EXPECT_NEAR(sample->gradient_square, expected.gradient_square, 1e-11 * expected.trace);
      found.push_back(*sample);
      EXPECT_EQ(sample->trace, found[0].trace) << strategy_name << " on " << workers;  // bit for bit
      EXPECT_EQ(sample->gradient_square, found[0].gradient_square) << strategy_name << " on " << workers;
    }
}

TEST_F(TrainerTest, TheNoiseIsThatOfTheLanesWhoeverCarriesThem) {
  TrainerOptions how = options("one");
  how.epochs = 4;  // of 6 steps
  how.measure = "noise";
  const TrainerResult one = train(1, task(), how);
  const std::string rows = text("one/noise.csv");
  EXPECT_TRUE(rows.starts_with("step,gradient_square,trace,noise_scale,low,high\n1,")) << rows;
  const auto summary = nlohmann::json::parse(text("one/summary.json"));
  EXPECT_EQ(summary.at("noise").at("steps"), 12);
  EXPECT_TRUE(summary.at("noise").contains("scale"));
  EXPECT_NE(text("one/index.html").find("aria-label=\"Gradient noise scale"), std::string::npos);
  for (const char* strategy : {"ddp", "zero1"})
    for (const int workers : {2, 4}) {
      how.strategy = strategy;
      how.out = (folder_ / (strategy + std::to_string(workers))).string();
      train(workers, task(), how);
      EXPECT_EQ(text(strategy + std::to_string(workers) + "/noise.csv"), rows) << strategy << workers;
    }
  // In two parts it is the same; and it changes nothing else.
  how.strategy = "ddp";
  how.out = (folder_ / "parts").string();
  how.if_there = IfThere::resume;
  how.epochs = 2;
  train(2, task(), how);
  how.epochs = 4;
  train(4, task(), how);
  EXPECT_EQ(text("parts/noise.csv"), rows);
  how.out = (folder_ / "without").string();
  how.measure = "none";
  EXPECT_EQ(train(2, task(), how).params_sha256, one.params_sha256);
  EXPECT_FALSE(fs::exists(folder_ / "without/noise.csv"));
}

TEST_F(TrainerTest, TheNoiseOfOneLaneIsRefused) {
  TrainerOptions how = options("run");
  how.measure = "noise";
  how.lanes = 1;
  EXPECT_EQ(refusal([&] { train(1, task(), how); }),
            "measure = noise compares the gradients of lanes, and there is one; accepted: lanes = 2 or more");
  how.measure = "noises";
  EXPECT_NE(refusal([&] {
              train(1, task(), how);
            }).find("measure: 'noises' is not understood; accepted: none, noise"),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace lockstep::testing
