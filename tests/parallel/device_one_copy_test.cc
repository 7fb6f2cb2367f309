// One copy of the parameters for workers on one device: the test device, whose memory the host can't touch,
// whose streams are slow, and which notices what no event orders (comm/test_device.h), of whichever worker.
#include <thread>

#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/units.h"
#include "parallel/device_training.h"

namespace lockstep::testing {
namespace {

// Units, of which nothing is gathered here, a parameter in none of them, and one that is not trained.
struct CopyNet : torch::nn::Module {
  CopyNet(torch::Device device, torch::ScalarType type) {
    int in = 6;
    for (const int out : {8, 9, 8}) {
      layers.push_back(shard(register_module("layer" + std::to_string(layers.size()),
                                             std::make_shared<DeviceLayer>(in, out, device))));
      in = out;
    }
    alone = register_parameter("alone", waves({8}, 3).to(device));
    frozen = register_parameter("frozen", waves({8}, 4).to(device), /*requires_grad=*/false);
    if (type != torch::kFloat32) for_each_unit(*this, [&](torch::nn::Module& part) { part.to(type); });
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = layer.forward(x);
    return x * frozen + alone;
  }
  std::size_t trained_bytes() const {
    std::size_t bytes = 0;
    for (const torch::Tensor& tensor : parameters())
      if (tensor.requires_grad()) bytes += tensor.nbytes();
    return bytes;
  }
  std::vector<UnitOf<DeviceLayer>> layers;
  torch::Tensor alone, frozen;
};

struct CopyPlan {
  std::string strategy = "zero3";
  StrategyOptions options = {};
  int ranks = 2;
  int lanes = 4;  // in all
  bool adam = true;
  torch::ScalarType type = torch::kFloat32;
  bool clip = false;
  bool in_parts = false;  // cut as it was made
  bool on_host = false;   // the optimizer's state, and the update
};

std::unique_ptr<Optimizer> optimizer_of(Strategy& strategy, const CopyPlan& plan) {
  const MasterWeights masters = plan.type == torch::kFloat32 ? MasterWeights::none : MasterWeights::f32;
  if (plan.adam)
    return std::make_unique<AdamW>(
        strategy, AdamWOptions{.lr = 0.05, .master_weights = masters, .offload = {.host = plan.on_host}});
  return std::make_unique<SGD>(strategy, SGDOptions{.lr = 0.05, .momentum = 0.9, .master_weights = masters});
}

Tensors train_copy(const Group& g, torch::Device device, const CopyPlan& plan) {
  std::optional<ShardedConstruction> scope;
  if (plan.in_parts) scope.emplace(g);
  auto net = std::make_shared<CopyNet>(device, plan.type);
  scope.reset();
  StrategyOptions options = plan.options;
  options.first_bucket_mb = options.bucket_cap_mb = 1e-4;
  const auto strategy = make_strategy(plan.strategy, net, g, options);
  const auto optimizer = optimizer_of(*strategy, plan);
  for (int step = 0; step < 4; ++step) {
    train_lanes(g, *strategy, *net, device, plan.lanes, step, plan.type);
    if (plan.clip) (void)clip_grad_norm_(*strategy, 0.5);
    optimizer->step();
  }
  Tensors result;
  const auto each = strategy->each_whole();
  for (const torch::Tensor& tensor : net->parameters()) {
    each.bring(tensor);
    result.push_back(tensor.detach().cpu().clone());
  }
  for (const auto& [name, tensor] : optimizer->state_dict()) result.push_back(tensor);
  return result;
}

void expect_one_copy_has_the_bits_of_ddp(const CopyPlan& plan) {
  CopyPlan plain = plan;
  plain.strategy = "ddp";
  plain.options = {};
  plain.in_parts = plain.on_host = false;
  expect_bits_of_plain(plan, plain, test_device_groups(plan.ranks, TestCards::one), train_copy,
                       /*waits=*/plan.on_host);
}

TEST(DeviceOneCopy, HasTheBitsOfDataParallelAndTheHostWaitsForNoStream) {
  for (const int ranks : {1, 2, 4})
    for (const bool adam : {false, true}) {
      SCOPED_TRACE(std::to_string(ranks) + (adam ? " ranks, adamw" : " ranks, sgd"));
      expect_one_copy_has_the_bits_of_ddp({.ranks = ranks, .adam = adam});
    }
}
TEST(DeviceOneCopy, SoItHasIn16BitsWithMasters) {
  for (const int ranks : {2, 4})
    for (const bool adam : {false, true})
      expect_one_copy_has_the_bits_of_ddp({.ranks = ranks, .adam = adam, .type = torch::kBFloat16});
}
TEST(DeviceOneCopy, SoItHasWhereWorkersHaveOtherNumbersOfLanes) {
  expect_one_copy_has_the_bits_of_ddp({.ranks = 3, .lanes = 4});
}
TEST(DeviceOneCopy, SoItHasInsideOfNodes) {
  expect_one_copy_has_the_bits_of_ddp({.strategy = "hybrid-shard", .ranks = 2});
}
TEST(DeviceOneCopy, SoItHasWithClipping) { expect_one_copy_has_the_bits_of_ddp({.ranks = 2, .clip = true}); }
TEST(DeviceOneCopy, SoItHasWithTheStateInTheHostsMemory) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16})
    expect_one_copy_has_the_bits_of_ddp({.ranks = 3, .type = type, .on_host = true});
}
TEST(DeviceOneCopy, SoItHasOfUnitsThatWereCutAsTheyWereMade) {
  expect_one_copy_has_the_bits_of_ddp({.ranks = 2, .in_parts = true});
}
TEST(DeviceOneCopy, SoItHasAskedForByName) {
  expect_one_copy_has_the_bits_of_ddp({.options = {.parameters = ParameterAccess::mapped}, .ranks = 2});
}

TEST(DeviceOneCopy, IsThereOnceAndNothingIsGathered) {
  constexpr int kRanks = 4;
  std::vector<std::size_t> bytes(kRanks);
  std::vector<const void*> places(kRanks);
  on_threads(test_device_groups(kRanks, TestCards::one), [&](const Group& g) {
    const auto r = static_cast<std::size_t>(g.rank());
    const torch::Device device = torch_test_device(g);
    auto net = std::make_shared<CopyNet>(device, torch::kFloat32);
    const auto strategy = make_strategy("zero3", net, g, {.bucket_cap_mb = 1e-4});
    AdamW optimizer(*strategy);
    train_lanes(g, *strategy, *net, device, /*lanes=*/4, 0);
    optimizer.step();
    bytes[r] = strategy->parameter_bytes() - net->frozen.nbytes();
    places[r] = net->layers[1]->weight.data_ptr();
    EXPECT_EQ(strategy->gathered_bytes(), 0U);
    EXPECT_FALSE(strategy->gathers());
    // Of the trained ones two moments in shards; buckets are aligned.
    EXPECT_LT(optimizer.state_bytes(), net->trained_bytes() * 2 / kRanks + 512);
    // A quarter, and what it takes to make buckets of equal parts.
    EXPECT_GE(bytes[r] * kRanks, net->trained_bytes());
    EXPECT_LT(bytes[r] * kRanks, net->trained_bytes() + 6 * 256);
  });
  for (const void* const place : places) EXPECT_EQ(place, places[0]);
}

TEST(DeviceOneCopy, IsNotWhereItCannotBeOrABudgetAsksForGathers) {
  const auto gathers = [](TestCards cards, const StrategyOptions& options) {
    on_threads(test_device_groups(2, cards), [&](const Group& g) {
      auto net = std::make_shared<CopyNet>(torch_test_device(g), torch::kFloat32);
      const auto strategy = make_strategy("zero3", net, g, options);
      EXPECT_TRUE(strategy->gathers());
      EXPECT_FALSE(has_memory(net->layers[0]->weight));
    });
  };
  gathers(TestCards::one, {.gathered_mb = 1});
  gathers(TestCards::one, {.parameters = ParameterAccess::gathered});
  gathers(TestCards::one_each, {});
}

// Each worker goes on with parameters of its own.
TEST(DeviceOneCopy, IsLeftByTheNextStrategy) {
  const auto train = [](const Group& g, torch::Device device, bool before) {
    auto net = std::make_shared<CopyNet>(device, torch::kFloat32);
    if (before) (void)make_strategy("zero3", net, g);
    const auto ddp = make_strategy("ddp", net, g);
    AdamW optimizer(*ddp, {.lr = 0.05});
    for (int step = 0; step < 3; ++step) {
      train_lanes(g, *ddp, *net, device, /*lanes=*/4, step);
      optimizer.step();
    }
    return net->layers[1]->weight.detach().cpu();
  };
  Tensors plain(2), behind(2);
  on_threads(thread_groups(2), [&](const Group& g) {
    plain[static_cast<std::size_t>(g.rank())] = train(g, torch::kCPU, false);
  });
  on_threads(test_device_groups(2, TestCards::one), [&](const Group& g) {
    behind[static_cast<std::size_t>(g.rank())] = train(g, torch_test_device(g), true);
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t r = 0; r < 2; ++r) EXPECT_TRUE(torch::equal(behind[r], plain[r])) << "rank " << r;
}

// Who comes first to load weights comes behind what the others still compute with the old ones.
TEST(DeviceOneCopy, NobodyWritesItUnderWholeWhileOthersReadIt) {
  const torch::Tensor old = waves({8, 9}, 2.0 * 9 + 8);
  on_threads(test_device_groups(2, TestCards::one), [&](const Group& g) {
    auto net = std::make_shared<CopyNet>(torch_test_device(g), torch::kFloat32);
    const auto strategy = make_strategy("zero3", net, g);
    const torch::Tensor weight = net->layers[1]->weight.detach();
    const torch::Tensor before = torch::empty_like(weight), after = torch::empty_like(weight);
    for (int reads = 0; reads < 1 + 40 * g.rank(); ++reads) before.copy_(weight);
    {
      const auto whole = strategy->whole();
      if (g.rank() == 0) weight.fill_(7);
    }
    after.copy_(weight);
    EXPECT_TRUE(torch::equal(before.cpu(), old)) << "rank " << g.rank();
    EXPECT_TRUE(torch::equal(after.cpu(), torch::full({8, 9}, 7.0f))) << "rank " << g.rank();
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

// Before an update nobody may make: the others are told.
TEST(DeviceOneCopy, OfAWorkerThatGoesTheOthersAreTold) {
  std::vector<Group> groups = test_device_groups(3, TestCards::one);
  std::vector<std::jthread> threads;
  std::atomic<int> told = 0;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&told, g = std::move(groups[static_cast<std::size_t>(r)])]() mutable {
      const torch::Device device = torch_test_device(g);
      auto net = std::make_shared<CopyNet>(device, torch::kFloat32);
      auto strategy = make_strategy("zero3", net, g);
      auto optimizer = std::make_unique<AdamW>(*strategy);
      for (int step = 0; step < 2; ++step) {
        train_lanes(g, *strategy, *net, device, /*lanes=*/3, step);
        if (step == 0) optimizer->step();
      }
      const bool goes = g.rank() == 1;
      if (!goes) {
        expect_error<PeerError>([&] { optimizer->step(); }, {"rank 1", "before the parameters are updated"});
        ++told;
      }
      optimizer.reset();
      strategy.reset();
      g = {};
    });
  threads.clear();
  EXPECT_EQ(told, 2);
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

}  // namespace
}  // namespace lockstep::testing
