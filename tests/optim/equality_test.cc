// Bit for bit what libtorch's optimizers give, step by step: sizes around every vector width, parameters that
// have no gradient in some steps, groups, and a learning rate that changes.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep {
namespace {

constexpr int kSteps = 50;

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

// A libtorch that takes square roots from MKL's vector library (2.x wheels do) rounds some of them wrongly;
// ours are always rounded right. The bits of Adam can't be equal then.
bool square_roots_are_exact() {
  static const bool exact = [] {
    const auto x = torch::rand({4099}) + 0.1;
    const auto root = x.sqrt();
    for (std::int64_t i = 0; i < x.numel(); ++i)
      if (root.data_ptr<float>()[i] != std::sqrt(x.data_ptr<float>()[i])) return false;
    return true;
  }();
  return exact;
}

// As Adam's results compare: in their bits, or, where libtorch's square roots differ in the last place,
// within what that makes of 50 steps.
bool same_result(const torch::Tensor& a, const torch::Tensor& b) {
  if (square_roots_are_exact()) return same_bits(a, b);
  return torch::allclose(a, b, 2e-6, 2e-6);
}

std::vector<torch::Tensor> make_parameters(torch::ScalarType dtype) {
  torch::manual_seed(7);
  std::vector<torch::Tensor> made;
  const auto add = [&](std::vector<std::int64_t> sizes) {
    made.push_back(torch::randn(sizes, dtype).set_requires_grad(true));
  };
  for (std::int64_t size = 1; size < 100; size += 2) add({size});
  add({4096 + 3});
  add({3, 5, 7});
  add({1000});
  add({});
  add({0});
  return made;
}

std::vector<NamedTensor> named(const std::vector<torch::Tensor>& tensors) {
  std::vector<NamedTensor> result;
  for (std::size_t k = 0; k < tensors.size(); ++k)
    result.push_back({fmt::format("p{}", k), tensors[k].clone().detach().set_requires_grad(true)});
  return result;
}

// A gradient of ordinary numbers, tiny ones whose squares underflow, and zeros; none in some steps.
torch::Tensor gradient(const torch::Tensor& parameter, int step, std::size_t k) {
  if ((static_cast<std::size_t>(step) + k) % 7 == 3) return {};
  auto g = torch::randn_like(parameter.detach());
  if (k % 5 == 1) g = g * 1e-22;
  if (k % 5 == 2) g = torch::relu(g);
  return g;
}

double lr_of(double lr, int step) { return lr / (1 + 0.1 * (step % 9)); }

template <class TorchOptions>
void set_torch_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) static_cast<TorchOptions&>(group.options()).lr(lr);
}

template <class Theirs, class TheirOptions, class Ours, class OurOptions>
void compare(const TheirOptions& their_options, const OurOptions& our_options, torch::ScalarType dtype,
             const std::string& what) {
  constexpr bool takes_roots = !std::is_same_v<Theirs, torch::optim::SGD>;
  at::set_num_threads(1);
  const auto theirs = make_parameters(dtype);
  const auto ours = named(theirs);
  Theirs their_optimizer(theirs, their_options);
  Ours our_optimizer(ours, our_options);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t k = 0; k < theirs.size(); ++k) {
      const auto g = gradient(theirs[k], step, k);
      theirs[k].mutable_grad() = g;
      ours[k].tensor.mutable_grad() = g.defined() ? g.clone() : g;
    }
    set_torch_lr<TheirOptions>(their_optimizer, lr_of(our_options.lr, step));
    our_optimizer.set_lr(lr_of(our_options.lr, step));
    their_optimizer.step();
    our_optimizer.step();
    for (std::size_t k = 0; k < theirs.size(); ++k)
      ASSERT_TRUE(takes_roots ? same_result(theirs[k], ours[k].tensor) : same_bits(theirs[k], ours[k].tensor))
          << what << ", " << dtype << ", step " << step << ", shape " << theirs[k].sizes();
  }
}

TEST(EqualsLibtorch, Sgd) {
  std::vector<SGDOptions> all;
  for (const double weight_decay : {0.0, 1e-2}) {
    all.push_back({.lr = 0.1, .weight_decay = weight_decay});
    for (const double dampening : {0.0, 0.3})
      all.push_back({.lr = 0.1, .momentum = 0.9, .dampening = dampening, .weight_decay = weight_decay});
    all.push_back({.lr = 0.1, .momentum = 0.9, .weight_decay = weight_decay, .nesterov = true});
  }
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const SGDOptions& o : all) {
      const auto theirs = torch::optim::SGDOptions(o.lr)
                              .momentum(o.momentum)
                              .dampening(o.dampening)
                              .weight_decay(o.weight_decay)
                              .nesterov(o.nesterov);
      compare<torch::optim::SGD, torch::optim::SGDOptions, SGD>(
          theirs, o, dtype,
          "momentum " + std::to_string(o.momentum) + " dampening " + std::to_string(o.dampening) + " decay " +
              std::to_string(o.weight_decay) + (o.nesterov ? " nesterov" : ""));
    }
}

template <class Theirs, class TheirOptions, class Ours, class OurOptions>
void compare_adam() {
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const double weight_decay : {0.0, 1e-2})
      for (const double beta1 : {0.9, 0.0})
        for (const double eps : {1e-8, 1e-3}) {
          const OurOptions o{
              .lr = 1e-2, .beta1 = beta1, .beta2 = 0.99, .eps = eps, .weight_decay = weight_decay};
          const auto theirs =
              TheirOptions(o.lr).betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(o.weight_decay);
          compare<Theirs, TheirOptions, Ours>(theirs, o, dtype,
                                              "beta1 " + std::to_string(beta1) + " eps " +
                                                  std::to_string(eps) + " decay " +
                                                  std::to_string(weight_decay));
        }
}

TEST(EqualsLibtorch, Adam) {
  compare_adam<torch::optim::Adam, torch::optim::AdamOptions, Adam, AdamOptions>();
}

TEST(EqualsLibtorch, AdamW) {
  compare_adam<torch::optim::AdamW, torch::optim::AdamWOptions, AdamW, AdamWOptions>();
}

TEST(EqualsLibtorch, Groups) {
  at::set_num_threads(1);
  const auto theirs = make_parameters(torch::kFloat);
  const auto ours = named(theirs);
  std::vector<torch::Tensor> even, odd;
  for (std::size_t k = 0; k < theirs.size(); ++k) (k % 2 == 0 ? even : odd).push_back(theirs[k]);
  using Options = torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(even, std::make_unique<Options>(Options(1e-2).weight_decay(0.1)));
  groups.emplace_back(odd, std::make_unique<Options>(Options(1e-2 * 0.25).weight_decay(0)));
  torch::optim::AdamW their_optimizer(groups, Options(1e-2));
  AdamW our_optimizer(ours, {.lr = 1e-2, .weight_decay = 0.1});
  const auto is_odd = [](const std::string& name) { return std::stoi(name.substr(1)) % 2 == 1; };
  // The group added last wins.
  EXPECT_EQ(our_optimizer.add_group({.match = is_odd, .lr_scale = 7, .weight_decay = 3}), odd.size());
  EXPECT_EQ(our_optimizer.add_group({.match = is_odd, .lr_scale = 0.25, .weight_decay = 0}), odd.size());
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t k = 0; k < theirs.size(); ++k) {
      const auto g = gradient(theirs[k], step, k);
      theirs[k].mutable_grad() = g;
      ours[k].tensor.mutable_grad() = g;
    }
    their_optimizer.step();
    our_optimizer.step();
    for (std::size_t k = 0; k < theirs.size(); ++k)
      ASSERT_TRUE(same_result(theirs[k], ours[k].tensor)) << "step " << step << ", parameter " << k;
  }
}

// 16-bit types: libtorch's f32 optimizer, whose parameters and state are rounded to the type after each step.
TEST(EqualsLibtorch, RoundedOnceAStepForHalfAndBFloat16) {
  at::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    torch::manual_seed(3);
    const auto wide = torch::randn({1037}).to(dtype).to(torch::kFloat).set_requires_grad(true);
    const auto half = wide.detach().to(dtype).set_requires_grad(true);
    torch::optim::AdamW theirs({wide}, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
    AdamW ours({{"w", half}}, {.lr = 1e-2, .weight_decay = 0.1});
    const auto round = [&](const torch::Tensor& tensor) { tensor.copy_(tensor.to(dtype).to(torch::kFloat)); };
    for (int step = 0; step < kSteps; ++step) {
      half.mutable_grad() = torch::randn({1037}).to(dtype);
      wide.mutable_grad() = half.grad().to(torch::kFloat);
      theirs.step();
      ours.step();
      round(wide.detach());
      for (const auto& [key, state] : theirs.state()) {
        const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
        round(adam.exp_avg());
        round(adam.exp_avg_sq());
      }
      ASSERT_TRUE(same_bits(wide.detach().to(dtype), half)) << dtype << ", step " << step;
    }
  }
}

TEST(EqualsLibtorch, WhateverTheNumberOfThreads) {
  torch::manual_seed(5);
  const auto start = torch::randn({300001});
  const auto g = torch::randn({300001});
  std::vector<torch::Tensor> results;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    const auto p = start.clone().set_requires_grad(true);
    AdamW optimizer({{"p", p}}, {});
    for (int step = 0; step < 5; ++step) {
      p.mutable_grad() = g;
      optimizer.step();
    }
    results.push_back(p);
  }
  at::set_num_threads(1);
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_FALSE(same_bits(results[0], start));
}

}  // namespace
}  // namespace lockstep
