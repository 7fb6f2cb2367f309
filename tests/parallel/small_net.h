// A small model with batch norm, the same on every call; and how tests compare models.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <span>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::testing {

struct SmallNet : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
  explicit SmallNet(std::int64_t width = 8) {
    first = register_module("first", torch::nn::Linear(6, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    second = register_module("second", torch::nn::Linear(width, 3));
    const torch::NoGradGuard no_grad;
    float x = 0.1f;
    for (auto& p : parameters()) {
      p.copy_(torch::linspace(-x, x + 0.1f, p.numel()).view(p.sizes()));
      x += 0.1f;
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
};

inline torch::Tensor small_sample(int index) {
  return torch::sin(torch::arange(6).to(torch::kFloat32) * (0.3f * static_cast<float>(index + 1)));
}

inline torch::Tensor small_batch(int lane, int step) {
  std::vector<torch::Tensor> rows;
  for (int i = 0; i < 4; ++i) rows.push_back(small_sample(step * 100 + lane * 4 + i));
  return torch::stack(rows);
}

// One of three lanes of a step, a lane a worker.
template <class Strategy>
void train_lane(Strategy& strategy, SmallNet& net, int rank, int step) {
  auto scope = strategy.lane({.step = step, .index = rank, .total_weight = 3});
  net.forward(small_batch(rank, step)).square().mean().backward();
}

// `count` examples of it; the target is zero.
struct SmallExamples : Dataset {
  explicit SmallExamples(std::int64_t count_) : count(count_) {}
  std::int64_t size() const override { return count; }
  Batch get(std::span<const std::int64_t> indices, RandomStream*) const override {
    std::vector<torch::Tensor> rows;
    for (const std::int64_t i : indices) rows.push_back(small_sample(static_cast<int>(i)));
    return {.data = torch::stack(rows),
            .target = torch::zeros({static_cast<std::int64_t>(indices.size()), 3})};
  }
  std::int64_t count;
};

inline std::vector<torch::Tensor> copies(const torch::nn::Module& module) {
  std::vector<torch::Tensor> list;
  for (const auto& p : module.parameters()) list.push_back(p.detach().clone());
  for (const auto& b : module.buffers()) list.push_back(b.clone());
  return list;
}

inline bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i], b[i])) return false;
  return true;
}

}  // namespace lockstep::testing
