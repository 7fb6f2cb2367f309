// LARS and LAMB against their definitions, written out in f64, one number after the other.
#include "lockstep/optim/layerwise.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "optim/layer_kernels.h"

namespace lockstep {
namespace {

constexpr int kLayerSteps = 100;

// One parameter as the references see it. `scaled`: neither a vector nor left out by name.
struct Layer {
  std::vector<double> w, m, v;
  bool scaled = true;
};

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

double clipped(double ratio, double most) { return most > 0 && ratio > most ? most : ratio; }

void refer(Layer& layer, const std::vector<double>& g, int, double lr, const LARSOptions& o) {
  const double decay = layer.scaled ? o.weight_decay : 0;
  const double w = norm_of(layer.w), norm = norm_of(g);
  double ratio = 1;
  if (layer.scaled && w > 0 && norm > 0)
    ratio = clipped(o.trust_coefficient * w / (norm + decay * w + o.eps), o.trust_clip);
  for (std::size_t i = 0; i < g.size(); ++i) {
    layer.m[i] = o.momentum * layer.m[i] + lr * ratio * (g[i] + decay * layer.w[i]);
    layer.w[i] -= layer.m[i];
  }
}

void refer(Layer& layer, const std::vector<double>& g, int step, double lr, const LAMBOptions& o) {
  const double decay = layer.scaled ? o.weight_decay : 0;
  std::vector<double> u(g.size());
  for (std::size_t i = 0; i < g.size(); ++i) {
    layer.m[i] = o.beta1 * layer.m[i] + (1 - o.beta1) * g[i];
    layer.v[i] = o.beta2 * layer.v[i] + (1 - o.beta2) * g[i] * g[i];
    const double m = layer.m[i] / (1 - std::pow(o.beta1, step));
    const double v = layer.v[i] / (1 - std::pow(o.beta2, step));
    u[i] = m / (std::sqrt(v) + o.eps) + decay * layer.w[i];
  }
  const double w = norm_of(layer.w), norm = norm_of(u);
  const double ratio = layer.scaled && w > 0 && norm > 0 ? clipped(w / norm, o.trust_clip) : 1;
  for (std::size_t i = 0; i < g.size(); ++i) layer.w[i] -= lr * ratio * u[i];
}

// Matrices around the edges of blocks and vectors, vectors, one element, none; weights that are all zero; and
// memory that is not in the order of its indices.
std::vector<NamedTensor> make_layers(torch::ScalarType dtype) {
  torch::manual_seed(11);
  std::vector<NamedTensor> made;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    made.push_back({name, tensor.to(dtype).detach().set_requires_grad(true)});
  };
  for (const std::int64_t n : {1, 7, 511, 512, 513, 5000})
    add("matrix" + std::to_string(n), 0.2 * torch::randn({1, n}));
  add("bias", 0.2 * torch::randn({33}));
  add("scalar", torch::ones({}));
  add("nothing", torch::ones({0, 3}));
  add("zeros", torch::zeros({4, 5}));
  add("turned", (0.2 * torch::randn({40, 30})).t());
  add("images", (0.2 * torch::randn({8, 6, 3, 3})).contiguous(torch::MemoryFormat::ChannelsLast));
  add("kept", 0.2 * torch::randn({20, 20}));
  return made;
}

std::vector<double> numbers(const torch::Tensor& tensor) {
  const auto x = tensor.detach().to(torch::kFloat64).contiguous();
  return {x.data_ptr<double>(), x.data_ptr<double>() + x.numel()};
}

// The largest difference between optimizer and reference after all steps, with a rate that changes; by the
// parameter's largest element where that is above one (what is left out walks far).
template <class Optimizer, class Options>
double largest_difference(const Options& options, torch::ScalarType dtype) {
  const auto parameters = make_layers(dtype);
  Optimizer optimizer(parameters, options);
  EXPECT_EQ(optimizer.add_group({.match = [](const std::string& name) { return name == "kept"; },
                                 .weight_decay = 0,
                                 .adapt = false}),
            1U);
  std::vector<Layer> layers;
  for (const auto& [name, tensor] : parameters) {
    const auto count = static_cast<std::size_t>(tensor.numel());
    layers.push_back({numbers(tensor), std::vector<double>(count), std::vector<double>(count),
                      name != "kept" && (tensor.dim() > 1 || options.vectors)});
  }
  for (int step = 1; step <= kLayerSteps; ++step) {
    const double lr = options.lr / (1 + 0.1 * (step % 9));
    optimizer.set_lr(lr);
    for (std::size_t k = 0; k < layers.size(); ++k) {
      const torch::Tensor& parameter = parameters[k].tensor;
      const auto g = torch::randn(parameter.sizes(), dtype) * (1 + 0.01 * step);
      parameter.mutable_grad() = g;
      refer(layers[k], numbers(g), step, lr, options);
    }
    optimizer.step();
  }
  double most = 0;
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const auto found = numbers(parameters[k].tensor);
    double scale = 1;
    for (const double w : layers[k].w) scale = std::fmax(scale, std::abs(w));
    for (std::size_t i = 0; i < found.size(); ++i)
      most =
          std::fmax(most, std::isfinite(found[i]) ? std::abs(found[i] - layers[k].w[i]) / scale : INFINITY);
  }
  return most;
}

TEST(Layerwise, LarsEqualsItsDefinition) {
  for (const LARSOptions& o :
       {LARSOptions{.lr = 0.5, .weight_decay = 0.01, .trust_coefficient = 0.02},
        LARSOptions{.lr = 0.02, .momentum = 0, .weight_decay = 0, .trust_coefficient = 0.5, .vectors = true},
        LARSOptions{.lr = 0.01, .trust_coefficient = 1, .eps = 1e-3, .trust_clip = 5e-3}}) {
    EXPECT_LT((largest_difference<LARS>(o, torch::kFloat64)), 1e-12) << o.lr;
    EXPECT_LT((largest_difference<LARS>(o, torch::kFloat32)), 1e-6) << o.lr;
  }
}

TEST(Layerwise, LambEqualsItsDefinition) {
  for (const LAMBOptions& o :
       {LAMBOptions{.lr = 2e-3}, LAMBOptions{.lr = 1e-3, .beta1 = 0.8, .beta2 = 0.99, .vectors = true},
        LAMBOptions{.lr = 2e-3, .weight_decay = 0, .trust_clip = 0.1}}) {
    EXPECT_LT((largest_difference<LAMB>(o, torch::kFloat64)), 1e-12) << o.lr;
    EXPECT_LT((largest_difference<LAMB>(o, torch::kFloat32)), 1e-6) << o.lr;
  }
}

template <class Optimizer>
std::vector<double> weights_after(int threads, torch::ScalarType dtype) {
  at::set_num_threads(threads);
  torch::manual_seed(5);
  const auto w = torch::randn({317, 401}).to(dtype).set_requires_grad(true);
  Optimizer optimizer({{"w", w}}, {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    w.mutable_grad() = torch::randn({317, 401}).to(dtype);
    optimizer.step();
  }
  at::set_num_threads(1);
  return numbers(w);
}

TEST(Layerwise, WhateverTheNumberOfThreads) {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kHalf, torch::kBFloat16}) {
    EXPECT_EQ(weights_after<LARS>(1, dtype), weights_after<LARS>(3, dtype)) << dtype;
    EXPECT_EQ(weights_after<LAMB>(1, dtype), weights_after<LAMB>(3, dtype)) << dtype;
  }
}

// What one step of f16 and bf16 gives is the f32 result, rounded.
TEST(Layerwise, SixteenBitsAreRoundedOnce) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    torch::manual_seed(3);
    const auto narrow = torch::randn({7, 191}).to(dtype).set_requires_grad(true);
    const auto wide = narrow.detach().to(torch::kFloat32).set_requires_grad(true);
    narrow.mutable_grad() = torch::randn({7, 191}).to(dtype);
    wide.mutable_grad() = narrow.grad().to(torch::kFloat32);
    LARS ours({{"w", narrow}}, {.lr = 20}), theirs({{"w", wide}}, {.lr = 20});
    ours.step();
    theirs.step();
    EXPECT_TRUE(torch::equal(narrow, wide.to(dtype))) << dtype;
  }
}

TEST(Layerwise, StateHasTheNamesOfSgdAndAdam) {
  const auto make = [] { return make_layers(torch::kFloat32); };
  const LARS lars(make());
  const LAMB lamb(make());
  EXPECT_TRUE(lars.state_dict().contains("momentum_buffer/bias"));
  EXPECT_TRUE(lamb.state_dict().contains("exp_avg/bias"));
  EXPECT_TRUE(lamb.state_dict().contains("exp_avg_sq/images"));
  EXPECT_TRUE(lamb.state_dict().contains("step/scalar"));
  LAMB other(make());
  EXPECT_THROW(other.load_state_dict(lars.state_dict()), UsageError);
  EXPECT_EQ(LARS(make(), {.momentum = 0}).state_bytes(), 0U);
}

TEST(Layerwise, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuses = [](const auto& make, const std::string& option) {
    try {
      make();
      ADD_FAILURE() << option << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(option + " is "), std::string::npos) << error.what();
    }
  };
  const auto lars = [](const LARSOptions& o) { return [o] { LARS(std::vector<NamedTensor>(), o); }; };
  const auto lamb = [](const LAMBOptions& o) { return [o] { LAMB(std::vector<NamedTensor>(), o); }; };
  refuses(lars({.lr = nan}), "lr");
  refuses(lars({.momentum = -1}), "momentum");
  refuses(lars({.trust_coefficient = nan}), "trust_coefficient");
  refuses(lars({.eps = -1}), "eps");
  refuses(lars({.trust_clip = -1}), "trust_clip");
  refuses(lamb({.beta1 = 1}), "beta1");
  refuses(lamb({.beta2 = nan}), "beta2");
  refuses(lamb({.eps = nan}), "eps");
  refuses(lamb({.weight_decay = -1}), "weight_decay");
  refuses(lamb({.trust_clip = nan}), "trust_clip");
}

// Zeros behind the last element, as in a block that was put together from parts, change nothing.
TEST(Layerwise, ABlocksSumDoesNotDependOnWhatIsBehindIt) {
  std::vector<double> x(kernel::kBlockElements);
  for (std::size_t count = 0; count < x.size(); ++count) {
    const double sum = kernel::sum_of_squares(x.data(), count);
    const double whole = kernel::sum_of_squares(x.data(), x.size());
    EXPECT_EQ(std::memcmp(&sum, &whole, sizeof(sum)), 0) << count;
    x[count] = 1.0 / static_cast<double>(count + 3);
  }
}

}  // namespace
}  // namespace lockstep
