// State that the host keeps and updates of parameters on a device: the test device (comm/test_device.h).
#include <unistd.h>

#include <filesystem>

#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/units.h"
#include "parallel/torch_test_device.h"
#include "parallel/waves.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

struct HostLayer : torch::nn::Module {
  HostLayer(int in, int out, torch::Device device, torch::ScalarType type) {
    weight = register_parameter("weight", waves({in, out}, in).to(type).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(x.mm(weight)); }
  torch::Tensor weight;
};

struct HostNet : torch::nn::Module {
  HostNet(torch::Device device, torch::ScalarType type) {
    for (const int in : {6, 7}) {
      layers.push_back(shard(register_module("layer" + std::to_string(in),
                                             std::make_shared<HostLayer>(in, in + 1, device, type))));
    }
    seldom = register_parameter("seldom", waves({8}, 3).to(type).to(device));
  }
  torch::Tensor forward(torch::Tensor x, bool all) {
    for (const auto& layer : layers) x = layer.forward(x);
    return all ? x + seldom : x;
  }
  std::vector<UnitOf<HostLayer>> layers;
  torch::Tensor seldom;  // used in some steps only
};

struct HostPlan {
  std::string strategy = "ddp";
  std::string optimizer = "adamw";
  torch::ScalarType type = torch::kFloat32;
  ReducePrecision reduce = ReducePrecision::same;
  Offload offload = {};
  int ranks = 2;
};

std::unique_ptr<Optimizer> optimizer_of(const HostPlan& plan, Strategy& strategy) {
  const MasterWeights masters = plan.type == torch::kFloat32 ? MasterWeights::none : MasterWeights::f32;
  if (plan.optimizer == "sgd")
    return std::make_unique<SGD>(strategy,
                                 SGDOptions{.lr = 0.05, .master_weights = masters, .offload = plan.offload});
  if (plan.optimizer == "lamb")
    return std::make_unique<LAMB>(
        strategy, LAMBOptions{.lr = 0.05, .master_weights = masters, .offload = plan.offload});
  return std::make_unique<AdamW>(
      strategy, AdamWOptions{.lr = 0.05, .master_weights = masters, .offload = plan.offload});
}

Tensors train_on_host(const Group& g, torch::Device device, const HostPlan& plan) {
  auto net = std::make_shared<HostNet>(device, plan.type);
  StrategyOptions options;
  options.first_bucket_mb = options.bucket_cap_mb = 1e-4;
  options.reduce_precision = plan.reduce;
  options.find_unused_parameters = true;
  const auto strategy = make_strategy(plan.strategy, net, g, options);
  const auto optimizer = optimizer_of(plan, *strategy);
  for (int step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    net->forward(waves({5, 6}, 10 * g.rank() + step).to(plan.type).to(device), step == 2)
        .pow(2)
        .sum()
        .backward();
    optimizer->step();
    if (step == 2) {  // what others write to a parameter is its value from then on
      const torch::NoGradGuard no_grad;
      const auto whole = strategy->whole();
      for (torch::Tensor& parameter : net->parameters()) parameter.mul_(0.5);
    }
    if (step == 3) optimizer->load_state_dict(optimizer->state_dict());
  }
  const auto figures = optimizer->offload();
  EXPECT_EQ(figures.has_value(), static_cast<bool>(plan.offload));
  if (figures && plan.optimizer != "sgd") {
    EXPECT_GT(figures->bytes, 0U);
    EXPECT_GT(figures->host_bytes, 0U);
    EXPECT_GT(figures->predicted_ms, 0);
    EXPECT_GT(figures->measured_ms.value_or(0), 0);
    EXPECT_EQ(optimizer->state_bytes(), 0U);
  }
  const auto whole = strategy->whole();
  Tensors result;
  for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu().clone());
  for (const auto& [name, tensor] : optimizer->state_dict()) result.push_back(tensor);
  return result;
}

class DeviceOffload : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-offload-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void expect_the_bits_of_state_in_place(HostPlan plan) {
    const auto ranks = static_cast<std::size_t>(plan.ranks);
    HostPlan plain = plan;
    plain.strategy = "ddp";
    std::vector<Tensors> expected(ranks);
    on_threads(thread_groups(plan.ranks), [&](const Group& g) {
      expected[static_cast<std::size_t>(g.rank())] = train_on_host(g, torch::kCPU, plain);
    });
    for (const Offload& offload : {Offload{.host = true}, Offload{.folder = folder_}}) {
      plan.offload = offload;
      std::vector<Tensors> found(ranks);
      on_threads(test_device_groups(plan.ranks), [&](const Group& g) {
        found[static_cast<std::size_t>(g.rank())] = train_on_host(g, torch_test_device(g), plan);
      });
      EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
      for (std::size_t r = 0; r < ranks; ++r) {
        ASSERT_EQ(found[r].size(), expected[r].size());
        for (std::size_t k = 0; k < expected[r].size(); ++k)
          EXPECT_TRUE(torch::equal(found[r][k], expected[r][k]))
              << (offload.host ? "host" : "disk") << ", rank " << r << ", tensor " << k;
      }
    }
  }
  std::filesystem::path folder_;
};

TEST_F(DeviceOffload, HasTheBitsOfStateInPlace) { expect_the_bits_of_state_in_place({}); }
TEST_F(DeviceOffload, SoHasASingleWorker) { expect_the_bits_of_state_in_place({.ranks = 1}); }
TEST_F(DeviceOffload, SoHasZero1) { expect_the_bits_of_state_in_place({.strategy = "zero1", .ranks = 3}); }
TEST_F(DeviceOffload, SoHasZero3) { expect_the_bits_of_state_in_place({.strategy = "zero3"}); }
TEST_F(DeviceOffload, SoHaveOptimizersWithoutStateAndWithNorms) {
  expect_the_bits_of_state_in_place({.optimizer = "sgd"});
  expect_the_bits_of_state_in_place({.strategy = "zero2", .optimizer = "lamb"});
}
TEST_F(DeviceOffload, SoHaveMasterWeights) {
  expect_the_bits_of_state_in_place({.type = torch::kBFloat16});
  expect_the_bits_of_state_in_place({.strategy = "zero3", .type = torch::kBFloat16});
}
TEST_F(DeviceOffload, SoHaveThoseWithWideGradients) {
  expect_the_bits_of_state_in_place({.type = torch::kBFloat16, .reduce = ReducePrecision::f32});
}

// Gradients of the last step would be on the device beside the next one's.
TEST_F(DeviceOffload, HoldsNoGradientsBetweenSteps) {
  on_threads(test_device_groups(1), [](const Group& g) {
    const torch::Tensor weight = waves({4, 3}, 1).to(torch_test_device(g)).requires_grad_();
    AdamW optimizer({{"weight", weight}}, {.offload = {.host = true}});
    weight.mul(weight).sum().backward();
    const c10::Storage gradient = weight.grad().storage();
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_EQ(gradient.use_count(), 1U);
  });
}

TEST_F(DeviceOffload, AGraphThatSavedAParameterNotices) {
  on_threads(test_device_groups(1), [](const Group& g) {
    const torch::Tensor weight = waves({4, 3}, 1).to(torch_test_device(g)).requires_grad_();
    AdamW optimizer({{"weight", weight}}, {.offload = {.host = true}});
    const torch::Tensor before = weight.mul(weight).sum();
    weight.mul(weight).sum().backward();
    optimizer.step();
    EXPECT_THROW(before.backward(), c10::Error);
  });
}

// The next one to get that memory writes to it.
TEST_F(DeviceOffload, GoesWhenTheLastParametersHaveGoneUp) {
  on_threads(test_device_groups(1), [](const Group& g) {
    const Device device = test_device(g);
    TestDevice& there = TestDevice::get();
    const torch::Tensor weight = waves({4, 3}, 1).to(torch_test_device(g)).requires_grad_();
    auto optimizer = std::make_unique<AdamW>(std::vector<NamedTensor>{{"weight", weight}},
                                             AdamWOptions{.offload = {.host = true}});
    weight.mul(weight).sum().backward();
    optimizer->step();
    const DeviceEvent end = there.record(there.current_stream(device.index));
    optimizer.reset();
    EXPECT_TRUE(there.passed(end));
  });
}

TEST_F(DeviceOffload, OnTheProcessorItIsRefused) {
  on_threads(thread_groups(1), [](const Group& g) {
    auto net = std::make_shared<HostNet>(torch::kCPU, torch::kFloat32);
    const auto strategy = make_strategy("ddp", net, g);
    expect_error<UsageError>([&] { AdamW optimizer(*strategy, {.offload = {.host = true}}); },
                             {"AdamW: offload: state of parameters on cpu is in the host's memory"});
  });
}

}  // namespace
}  // namespace lockstep::testing
