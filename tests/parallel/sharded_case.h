// What the tests of Sharded have in common: models, loops, and a case a stage.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>

#include <functional>

#include "comm/thread_ranks.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/sharded.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep::testing {

using Tensors = std::vector<torch::Tensor>;

// Batch norm, weights in channels-last and in transposed memory, a parameter of f64, one that is never used,
// one that only some lanes use, one element, none at all, and a tied one.
struct OddNet : SmallNet {
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor turned, wide, never, now_and_then, single, nothing;
  OddNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)));
    turned = register_parameter("turned", torch::zeros({6, 7}).t().detach());
    wide = register_parameter("wide", torch::linspace(-1, 1, 19, torch::kFloat64));
    never = register_parameter("never", torch::ones({33}));
    now_and_then = register_parameter("now_and_then", torch::ones({4, 3}));
    single = register_parameter("single", torch::ones({}));
    nothing = register_parameter("nothing", torch::ones({0, 3}));
    register_module("second_again", second.ptr());
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    float x = 0.1f;
    for (auto& p : parameters()) {
      p.copy_(torch::linspace(-x, x + 0.05f, p.numel()).view(p.sizes()));
      x += 0.05f;
    }
  }
  torch::Tensor loss(int lane, int step) {
    const torch::Tensor x = small_batch(lane, step);
    const torch::Tensor image = x.repeat({1, 8}).view({4, 3, 4, 4});
    torch::Tensor sum = SmallNet::forward(x).square().mean() + conv->forward(image).square().mean() +
                        x.matmul(turned.t()).square().mean() * single +
                        (wide * (lane + 1)).square().mean().to(torch::kFloat32);
    if (lane % 3 == 1) sum = sum + now_and_then.square().mean() * static_cast<float>(step + 1);
    return sum;
  }
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(GradientSource&)>;

inline std::unique_ptr<Optimizer> adamw(GradientSource& source) {
  auto optimizer = std::make_unique<AdamW>(source, AdamWOptions{.lr = 0.02});
  // Found by name, whoever has how much of them.
  EXPECT_EQ(optimizer->add_group({.match = [](const std::string& name) { return name.ends_with("bias"); },
                                  .lr_scale = 2,
                                  .weight_decay = 0}),
            4u);
  return optimizer;
}

inline std::unique_ptr<Optimizer> momentum(GradientSource& source) {
  return std::make_unique<SGD>(source, SGDOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true});
}

// Small buckets, so that there are several, cut in the middle of parameters.
inline StrategyOptions small() {
  return {.bucket_cap_mb = 4e-4, .first_bucket_mb = 1e-4, .check_replicas_every = 1};
}

class ShardedAt : public ::testing::TestWithParam<ShardStage> {
 protected:
  // Of make_strategy.
  static std::string name() { return "zero" + std::to_string(static_cast<int>(GetParam())); }
};
inline std::string stage_name(const ::testing::TestParamInfo<ShardStage>& stage) {
  return "Zero" + std::to_string(static_cast<int>(stage.param));
}
inline auto every_stage() {
  return ::testing::Values(ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters);
}

inline void lanes_of_a_step(const Group& group, int lanes, int step, OddNet& net, Strategy& strategy) {
  const LaneRange mine = lanes_of(group.rank(), group.size(), lanes);
  for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
    const auto scope = strategy.lane({.seed = 3,
                                      .step = step,
                                      .index = lane,
                                      .weight = 1.0 + lane % 2,
                                      .total_weight = static_cast<double>(lanes + lanes / 2),
                                      .first = lane == mine.first,
                                      .last = lane + 1 == mine.first + mine.count});
    net.loss(lane, step).backward();
  }
}

inline Tensors train_in_lanes(const std::string& strategy, const MakeOptimizer& make, const Group& group,
                              int lanes) {
  OddNet net;
  const auto model = make_strategy(strategy, net, group, small());
  const auto optimizer = make(*model);
  for (int step = 0; step < 5; ++step) {
    lanes_of_a_step(group, lanes, step, net, *model);
    optimizer->step();
  }
  model->check_replicas();
  return copies(net);
}

inline Tensors in_lanes(const std::string& strategy, const MakeOptimizer& make, int workers, int lanes) {
  return alike_on(thread_groups(workers),
                  [&](const Group& group) { return train_in_lanes(strategy, make, group, lanes); });
}

struct WideNet : torch::nn::Module {  // ten buckets of 16 KiB
  std::vector<torch::Tensor> weights;
  WideNet() {
    for (int k = 0; k < 10; ++k)
      weights.push_back(register_parameter("weight" + std::to_string(k), torch::full({4096}, 0.1 * k)));
  }
  torch::Tensor loss(int lane) {
    torch::Tensor x = torch::full({4096}, 0.5 + lane);
    for (const torch::Tensor& weight : weights) x = x * weight + 1;
    return x.mean();
  }
};
constexpr std::size_t kWideBytes = 10 * 4096 * sizeof(float);
inline const StrategyOptions kTenBuckets{.bucket_cap_mb = 1.0 / 64, .first_bucket_mb = 1.0 / 64};

}  // namespace lockstep::testing
