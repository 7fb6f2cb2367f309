// A small model with units of every kind, the same on every call; and how tests train it.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/lanes.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/units.h"
#include "parallel/alike_on.h"

namespace lockstep::testing {

// A residual block with batch norm; its last projection may be a unit of its own. `dropout`: for workers that
// are processes: threads have one random generator between them.
struct UnitBlock : torch::nn::Module {
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
  Unit inner;
  double dropout = 0;
  UnitBlock(int width, bool nested) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    batch = register_module("batch", torch::nn::BatchNorm1d(2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
    if (nested) inner = Unit({down.ptr()});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = batch(torch::gelu(up(norm(x))));
    if (dropout > 0) y = torch::dropout(y, dropout, is_training());
    return x + inner.run([this](const torch::Tensor& z) { return down(z); }, y);
  }
};

struct TiedHead : torch::nn::Module {
  torch::Tensor weight, bias;
  explicit TiedHead(const torch::Tensor& tied) {
    weight = register_parameter("weight", tied);
    bias = register_parameter("bias", torch::zeros({tied.size(0)}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::addmm(bias, x, weight.t()); }
};

struct WideScale : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::linspace(-1, 1, 8, torch::kFloat64));
  torch::Tensor forward(const torch::Tensor& x) { return x * weight.to(x.scalar_type()); }
};

// Tied embeddings in two units, a nested unit, one that is used twice, one of frozen parameters, one that is
// never used, one of another type, one with a single element a worker or less, and a parameter in no unit.
struct UnitNet : torch::nn::Module {
  static constexpr int kWords = 11;
  static constexpr int kWidth = 8;
  UnitOf<torch::nn::EmbeddingImpl> tok;
  std::vector<UnitOf<UnitBlock>> blocks;
  UnitOf<torch::nn::LinearImpl> frozen, never;
  UnitOf<WideScale> wide;
  UnitOf<TiedHead> head;
  torch::Tensor alone;
  UnitNet() {
    tok = shard(register_module("tok", torch::nn::Embedding(kWords, kWidth)));
    for (int i = 0; i < 3; ++i)
      blocks.push_back(
          shard(register_module("block" + std::to_string(i), std::make_shared<UnitBlock>(kWidth, i == 1))));
    frozen = shard(register_module("frozen", torch::nn::Linear(kWidth, kWidth)));
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    never = shard(register_module("never", torch::nn::Linear(3, 5)));
    wide = shard(register_module("wide", std::make_shared<WideScale>()));
    head = shard(register_module("head", std::make_shared<TiedHead>(tok->weight)));
    alone = register_parameter("alone", torch::ones({5}));
    for_each_unit(*this, [this](torch::nn::Module&) { fill(); });
  }
  void fill() {
    const torch::NoGradGuard no_grad;
    float x = 0.1f;
    for (auto& p : parameters()) {
      if (has_memory(p)) p.copy_(torch::linspace(-x, x + 0.05f, p.numel()).view(p.sizes()));
      x += 0.03f;
    }
  }
  torch::Tensor forward(const torch::Tensor& words) {
    auto x = tok.forward(words);
    for (const auto& block : blocks) x = block.forward(x);
    x = blocks[2].forward(frozen.forward(x)).relu_();  // for the second time, and changed in place behind it
    return head.forward(wide.forward(x)) * alone.mean();
  }
  torch::Tensor loss(int lane, int step) {
    const auto words = torch::arange(6).mul(lane + 1).add(3 * step).remainder(kWords);
    return torch::cross_entropy_loss(forward(words), words.flip(0));
  }
  int recompute_blocks() {
    for (const auto& block : blocks) recompute(block);
    return static_cast<int>(blocks.size());
  }
};

// Buckets smaller than most units.
inline StrategyOptions gathered_options() {
  return {.bucket_cap_mb = 4e-4,
          .first_bucket_mb = 1e-4,
          .check_replicas_every = 1,
          .parameters = ParameterAccess::gathered};
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(GradientSource&)>;

inline std::unique_ptr<Optimizer> unit_adamw(GradientSource& source) {
  return std::make_unique<AdamW>(source, AdamWOptions{.lr = 0.02});
}

template <class Net>
void unit_lanes(const Group& group, int lanes, int step, Net& net, Strategy& strategy) {
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

struct UnitRun {
  std::string strategy = "zero3";
  StrategyOptions options = gathered_options();
  MakeOptimizer make = unit_adamw;
  int lanes = 8;
  int steps = 4;
  bool recompute = false;
  bool in_parts = false;  // the model is made under a ShardedConstruction
  double clip = 0;        // 0: none
  std::function<void(const Strategy&, const Group&)> look = {};
};

inline StrategyOptions plain_options() {
  return {.bucket_cap_mb = 4e-4, .first_bucket_mb = 1e-4, .check_replicas_every = 1};
}

// Its tensors at the end, on one worker.
inline std::vector<torch::Tensor> train_units(const UnitRun& run, const Group& group) {
  std::optional<ShardedConstruction> scope;
  if (run.in_parts) scope.emplace(group);
  UnitNet net;
  scope.reset();
  if (run.recompute) net.recompute_blocks();
  const auto strategy = make_strategy(run.strategy, net, group, run.options);
  const auto optimizer = run.make(*strategy);
  double norms = 0;
  for (int step = 0; step < run.steps; ++step) {
    unit_lanes(group, run.lanes, step, net, *strategy);
    if (run.clip > 0) norms += clip_grad_norm_(*strategy, run.clip);
    optimizer->step();
  }
  strategy->check_replicas();
  if (run.look) run.look(*strategy, group);
  const auto whole = strategy->whole();
  auto all = copies(net);
  all.push_back(torch::scalar_tensor(norms, torch::kFloat64));
  return all;
}

inline std::vector<torch::Tensor> train_units(const UnitRun& run, int workers) {
  return alike_on(thread_groups(workers), [&](const Group& group) { return train_units(run, group); });
}

// What the rest is compared with.
inline std::vector<torch::Tensor> train_ddp(UnitRun run = {}) {
  run.strategy = "ddp";
  run.options = plain_options();
  run.look = {};
  run.in_parts = false;
  return train_units(run, 1);
}

}  // namespace lockstep::testing
