// The optimizers on a GPU have the processor's bits, for every type and any number and size of parameters.
#include "lockstep/optim/optimizer.h"

#include <torch/nn/modules/linear.h>

#include <cmath>

#include "cuda/gpu_here.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/layerwise.h"
#include "optim/update.h"

namespace lockstep::testing {
namespace {

class OptimizersOnGpu : public OnGpu {};

// Sizes around a pack's, a chunk's and a block's, and none at all.
const std::vector<std::int64_t> kSizes = {1, 3, 4, 5, 16, 31, 511, 512, 513, 8191, 8192, 8193, 70001, 0};

torch::Tensor waves(std::int64_t count, double phase) {
  return torch::sin(torch::arange(count, torch::kFloat64) * 0.7 + phase).mul(1 + phase / 10);
}

std::vector<NamedTensor> make_parameters(torch::ScalarType type, torch::Device device, int copies) {
  std::vector<NamedTensor> list;
  for (int c = 0; c < copies; ++c)
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      torch::Tensor values = waves(kSizes[i], static_cast<double>(i) + c).to(type);
      if (kSizes[i] == 70001) values = values.narrow(0, 1, 70000).view({100, 700});
      list.push_back({"p" + std::to_string(c) + "." + std::to_string(i), values.to(device).clone()});
    }
  return list;
}

// Three steps; parameters first, then the state by name.
template <class Make>
std::vector<torch::Tensor> train(torch::ScalarType type, torch::Device device, int copies, double scale,
                                 const Make& make) {
  const std::vector<NamedTensor> parameters = make_parameters(type, device, copies);
  const std::unique_ptr<Optimizer> optimizer = make(parameters);
  optimizer->add_group({.match = [](const std::string& name) { return name.ends_with("3"); },
                        .lr_scale = 0.5,
                        .weight_decay = 0});
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      torch::Tensor tensor = parameters[i].tensor;
      if (step == 1 && i % 5 == 2) {
        tensor.mutable_grad() = torch::Tensor();
        continue;
      }
      tensor.mutable_grad() = (waves(tensor.numel(), step + 0.1 * static_cast<double>(i)) * scale)
                                  .view(tensor.sizes())
                                  .to(type)
                                  .to(device);
    }
    optimizer->step(scale);
  }
  std::vector<torch::Tensor> result;
  for (const NamedTensor& parameter : parameters) result.push_back(parameter.tensor.cpu());
  for (const auto& [name, tensor] : optimizer->state_dict()) result.push_back(tensor);
  return result;
}

template <class Make>
void expect_the_processors_bits(torch::ScalarType type, const Make& make, int copies = 1, double scale = 1) {
  const std::vector<torch::Tensor> here = train(type, torch::kCPU, copies, scale, make);
  const std::vector<torch::Tensor> there = train(type, torch::Device(torch::kCUDA, 0), copies, scale, make);
  ASSERT_EQ(here.size(), there.size());
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(torch::equal(here[i], there[i]))
        << "tensor " << i << " of " << c10::toString(type) << ", apart by "
        << (here[i].to(torch::kFloat64) - there[i].to(torch::kFloat64)).abs().max().item<double>();
}

template <class O, class Options>
auto maker(Options options) {
  return [options](const std::vector<NamedTensor>& parameters) -> std::unique_ptr<Optimizer> {
    return std::make_unique<O>(parameters, options);
  };
}

const torch::ScalarType kTypes[] = {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16};

// Where the processor has no fused multiply-add it rounds twice, and the bits are others.
bool processor_fuses() { return std::string(kernel::update_target_name()).starts_with("AVX"); }

TEST_F(OptimizersOnGpu, HaveTheProcessorsBits) {
  if (!processor_fuses()) GTEST_SKIP() << "the processor has no fused multiply-add";
  for (const torch::ScalarType type : kTypes) {
    expect_the_processors_bits(type, maker<SGD>(SGDOptions{.lr = 0.1}));
    expect_the_processors_bits(type,
                               maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}));
    expect_the_processors_bits(type, maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}));
    expect_the_processors_bits(type, maker<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1}));
    expect_the_processors_bits(type, maker<AdamW>(AdamWOptions{.lr = 0.01}));
  }
}

TEST_F(OptimizersOnGpu, HaveThemWithMasterWeightsAndAScaledLoss) {
  if (!processor_fuses()) GTEST_SKIP() << "the processor has no fused multiply-add";
  for (const torch::ScalarType type : {torch::kFloat16, torch::kBFloat16}) {
    expect_the_processors_bits(
        type, maker<AdamW>(AdamWOptions{.lr = 0.01, .master_weights = MasterWeights::f32}), 1, 128);
    expect_the_processors_bits(
        type, maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .master_weights = MasterWeights::f32}), 1,
        128);
  }
}

// More than one table's, of either size.
TEST_F(OptimizersOnGpu, HaveThemForManyParameters) {
  if (!processor_fuses()) GTEST_SKIP() << "the processor has no fused multiply-add";
  expect_the_processors_bits(torch::kFloat32, maker<AdamW>(AdamWOptions{}), 6);
  expect_the_processors_bits(torch::kFloat32, maker<AdamW>(AdamWOptions{}), 60);
}

TEST_F(OptimizersOnGpu, SoHaveLarsAndLamb) {
  if (!processor_fuses()) GTEST_SKIP() << "the processor has no fused multiply-add";
  for (const torch::ScalarType type : kTypes) {
    expect_the_processors_bits(type, maker<LARS>(LARSOptions{.lr = 0.5, .vectors = true}));
    expect_the_processors_bits(type, maker<LAMB>(LAMBOptions{.lr = 0.01, .vectors = true}));
  }
  expect_the_processors_bits(
      torch::kBFloat16,
      maker<LAMB>(LAMBOptions{.lr = 0.01, .vectors = true, .master_weights = MasterWeights::f32}), 1, 16);
}

TEST_F(OptimizersOnGpu, ClippingScalesByTheNormOfAll) {
  for (const double type : {2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const auto run = [&](torch::Device device) {
      const auto parameters = make_parameters(torch::kFloat32, device, 1);
      for (const NamedTensor& parameter : parameters) {
        torch::Tensor tensor = parameter.tensor;
        tensor.mutable_grad() = tensor * 3;
      }
      SGD optimizer(parameters, {.lr = 1});
      const double norm = clip_grad_norm_(optimizer.source(), 0.5, type);
      return std::pair(norm, parameters[12].tensor.grad().cpu());
    };
    const auto [here, here_grad] = run(torch::kCPU);
    const auto [there, there_grad] = run(gpu());
    EXPECT_NEAR(there / here, 1, 1e-12) << type;
    EXPECT_TRUE(torch::allclose(here_grad, there_grad, 1e-6, 0)) << type;
    EXPECT_EQ(there, run(gpu()).first) << "the same bits each time";
  }
}

TEST_F(OptimizersOnGpu, GradientsThatAreNotFiniteSkipTheStep) {
  for (const torch::ScalarType type : kTypes)
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      auto parameters = make_parameters(type, gpu(), 1);
      AdamW optimizer(parameters, {.lr = 0.1});
      GradScaler scaler(optimizer, {.init_scale = 4});
      const auto fill = [&] {
        for (NamedTensor& parameter : parameters)
          parameter.tensor.mutable_grad() = torch::ones_like(parameter.tensor);
      };
      fill();
      EXPECT_TRUE(scaler.step());
      const torch::Tensor before = parameters[11].tensor.clone();
      fill();
      parameters[11].tensor.mutable_grad()[8192] = bad;
      EXPECT_FALSE(scaler.step()) << c10::toString(type);
      EXPECT_TRUE(torch::equal(parameters[11].tensor, before));
      EXPECT_EQ(scaler.scale(), 2);
    }
}

}  // namespace
}  // namespace lockstep::testing
