// A few steps of training by lanes, on any number of workers.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/lanes.h"
#include "lockstep/compress/compress.h"
#include "lockstep/optim/onebit_adam.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/small_net.h"

namespace lockstep::testing {

struct LaneRun {
  std::string strategy = "ddp";
  CompressOptions compress = {};
  int first_step = 0;
  int steps = 4;
  torch::ScalarType type = torch::kFloat32;
  ReducePrecision reduce_precision = ReducePrecision::same;
  int lanes_in_last_step = 0;  // 0: all of them
  std::int64_t width = 8;      // of the net
  double bucket_mb = 1e-4;
};

struct Trained {
  std::vector<torch::Tensor> tensors;  // parameters and buffers
  Exchange::State state;
  StateDict optimizer = {};
};

inline std::vector<torch::Tensor> tensors_in(const torch::nn::Module& module) {
  std::vector<torch::Tensor> list = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) list.push_back(buffer);
  return list;
}

// SGD, or the optimizer that the exchange is made for.
inline std::unique_ptr<Optimizer> lane_optimizer(Strategy& model, const LaneRun& run) {
  const MasterWeights masters = run.type == torch::kFloat32 ? MasterWeights::none : MasterWeights::f32;
  if (model.exchange().momenta)
    return std::make_unique<OneBitAdam>(model, OneBitAdamOptions{.lr = 0.01, .master_weights = masters});
  return std::make_unique<SGD>(model, SGDOptions{.lr = 0.05, .master_weights = masters});
}

inline Trained train_lanes(const Group& group, const LaneRun& run, const Trained* before = nullptr) {
  SmallNet net(run.width);
  if (run.type != torch::kFloat32) net.to(run.type);
  if (before != nullptr) {
    const torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> own = tensors_in(net);
    for (std::size_t i = 0; i < own.size(); ++i) torch::Tensor(own[i]).copy_(before->tensors[i]);
  }
  const auto model = make_strategy(run.strategy, net, group,
                                   {.bucket_cap_mb = run.bucket_mb,
                                    .first_bucket_mb = run.bucket_mb,
                                    .reduce_precision = run.reduce_precision,
                                    .exchange = compressed(run.compress)});
  if (before != nullptr) model->exchange().load(before->state);
  const std::unique_ptr<Optimizer> optimizer = lane_optimizer(*model, run);
  if (before != nullptr) optimizer->load_state_dict(before->optimizer);
  const LaneRange own = lanes_of(group.rank(), group.size(), run.compress.lanes);
  for (int step = run.first_step; step < run.first_step + run.steps; ++step) {
    const bool is_short = step + 1 == run.first_step + run.steps && run.lanes_in_last_step != 0;
    const int all = is_short ? run.lanes_in_last_step : run.compress.lanes;
    const int mine = std::clamp(all - own.first, 0, own.count);
    for (int k = 0; k < mine; ++k) {
      const int index = own.first + k;
      const auto scope = model->lane({.step = step,
                                      .index = index,
                                      .weight = is_short ? 1.0 + index : 1.0,
                                      .total_weight = is_short ? all * (all + 1) / 2.0 : all,
                                      .first = k == 0,
                                      .last = k + 1 == mine});
      net.forward(small_batch(index, step).to(run.type)).square().mean().backward();
    }
    model->synchronize();
    optimizer->step();
    optimizer->zero_grad();
  }
  return {copies(net), model->exchange().state(), optimizer->state_dict()};
}

}  // namespace lockstep::testing
