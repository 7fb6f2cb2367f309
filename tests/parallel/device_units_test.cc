// Parameters that are gathered in units, where the model is on a device: the test device, whose memory the
// host can't touch, whose streams are slow, and which notices what no event orders (comm/test_device.h).
#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "grad/bucket_slots.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/units.h"
#include "parallel/device_training.h"

namespace lockstep::testing {
namespace {

// Units of three sizes, one that is used twice in a forward, and a parameter in none of them.
struct DeviceUnits : torch::nn::Module {
  explicit DeviceUnits(torch::Device device) {
    int in = 6;
    for (const int out : {8, 8, 5, 8}) {
      layers.push_back(shard(register_module("layer" + std::to_string(layers.size()),
                                             std::make_shared<DeviceLayer>(in, out, device))));
      in = out;
    }
    alone = register_parameter("alone", waves({8}, 3).to(device));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i].forward(x);
      if (i == 1) x = layers[i].forward(x);
    }
    return x + alone;
  }
  std::vector<UnitOf<DeviceLayer>> layers;
  torch::Tensor alone;
};

struct UnitsPlan {
  std::string strategy = "zero3";
  StrategyOptions options = {};
  int ranks = 3;
  int lanes = 4;  // in all
  bool clip = false;
  bool in_parts = false;  // cut as it was made
};

Tensors train_units(const Group& g, torch::Device device, const UnitsPlan& plan) {
  std::optional<ShardedConstruction> scope;
  if (plan.in_parts) scope.emplace(g);
  auto net = std::make_shared<DeviceUnits>(device);
  scope.reset();
  StrategyOptions options = plan.options;
  options.first_bucket_mb = options.bucket_cap_mb = 1e-4;
  const auto strategy = make_strategy(plan.strategy, net, g, options);
  AdamW optimizer(*strategy, {.lr = 0.05});
  for (int step = 0; step < 3; ++step) {
    train_lanes(g, *strategy, *net, device, plan.lanes, step);
    if (plan.clip) (void)clip_grad_norm_(*strategy, 0.5);
    optimizer.step();
  }
  Tensors result;
  {
    const auto whole = strategy->whole();
    for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu().clone());
  }
  {  // what is written there is everybody's
    const torch::NoGradGuard no_grad;
    const auto whole = strategy->whole();
    for (torch::Tensor& tensor : net->parameters()) tensor.mul_(2);
  }
  const auto whole = strategy->whole();
  for (const torch::Tensor& tensor : net->parameters()) result.push_back(tensor.detach().cpu());
  for (const auto& [name, tensor] : optimizer.state_dict()) result.push_back(tensor);
  return result;
}

void expect_the_bits_of_ddp(const UnitsPlan& plan) {
  UnitsPlan plain = plan;
  plain.strategy = "ddp";
  plain.options = {};
  plain.in_parts = false;
  expect_bits_of_plain(
      plan, plain, test_device_groups(plan.ranks),
      [](const Group& g, torch::Device device, const UnitsPlan& way) { return train_units(g, device, way); });
}

// Four lanes on three workers: two of them have one, and serve the third.
TEST(DeviceUnits, HaveTheBitsOfDataParallelAndTheHostWaitsForNoStream) { expect_the_bits_of_ddp({}); }
TEST(DeviceUnits, SoHaveThoseWithABudget) {
  expect_the_bits_of_ddp({.options = {.gathered_mb = 700 * 0x1p-20}, .ranks = 2});
}
TEST(DeviceUnits, SoHaveThoseInSetsOfWorkers) {
  expect_the_bits_of_ddp({.options = {.shard_workers = 2}, .ranks = 4});
}
TEST(DeviceUnits, SoHasHybridShard) { expect_the_bits_of_ddp({.strategy = "hybrid-shard", .ranks = 2}); }
TEST(DeviceUnits, SoHasClipping) { expect_the_bits_of_ddp({.ranks = 2, .clip = true}); }
TEST(DeviceUnits, SoHaveThoseThatWereCutAsTheyWereMade) {
  expect_the_bits_of_ddp({.ranks = 2, .in_parts = true});
}
TEST(DeviceUnits, SoHasASingleWorkerWhichGathersNothing) { expect_the_bits_of_ddp({.ranks = 1}); }

TEST(DeviceUnits, OnlyTheOwnPartIsThereBetweenSteps) {
  on_threads(test_device_groups(2), [](const Group& g) {
    auto net = std::make_shared<DeviceUnits>(torch_test_device(g));
    const auto whole = [&] {
      std::size_t bytes = 0;
      for (const torch::Tensor& tensor : net->parameters()) bytes += tensor.nbytes();
      return bytes;
    }();
    const auto strategy = make_strategy("zero3", net, g);
    EXPECT_FALSE(has_memory(net->layers[0]->weight));
    EXPECT_LT(strategy->parameter_bytes(), whole * 6 / 10);
  });
}

// However far the device is behind the host.
TEST(DeviceUnits, BucketsOfGradientsAreUsedAgain) {
  on_threads(test_device_groups(2), [](const Group& g) {
    const Device device = test_device(g);
    TestDevice& there = TestDevice::get();
    BucketSlots slots(g, device, BucketSlots::kUnbounded);
    for (int bucket = 0; bucket < 10; ++bucket) {
      const CommMemory memory = slots.take(4096);
      for (int i = 0; i < 20; ++i)  // slow
        there.fill(memory.data(), std::byte{0}, 4096, there.current_stream(device.index));
      const Work exchange = g.all_reduce_async(Buffer{memory.data(), 1024, DType::f32, device});
      exchange.wait();  // it is on the stream now, and far from over there
      slots.leave(memory, exchange);
    }
    EXPECT_LE(slots.bytes(), 3 * 4096U);
    g.barrier();
    there.wait_uncounted(there.current_stream(device.index));
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(DeviceUnits, MemoryInCommonIsRefused) {
  on_threads(test_device_groups(2), [](const Group& g) {
    auto net = std::make_shared<DeviceUnits>(torch_test_device(g));
    expect_error<UsageError>(
        [&] { (void)make_strategy("zero3", net, g, {.parameters = ParameterAccess::mapped}); },
        {"`parameters` says mapped, and they are on custom:", "accepted: gathered"});
  });
}

}  // namespace
}  // namespace lockstep::testing
