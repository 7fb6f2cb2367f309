// Sixteen bits and scaled losses across workers: overflow is agreed on, a step that overflows changes
// nothing, and master weights have the same bits under every strategy.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/models/precision.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::expect_error;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

using Tensors = std::vector<torch::Tensor>;

StrategyOptions small_buckets() {
  return {.bucket_cap_mb = 4e-4, .first_bucket_mb = 1e-4, .check_replicas_every = 1};
}

// Everything that a step may change.
Tensors everything_of(const torch::nn::Module& net, const Optimizer& optimizer) {
  Tensors all = copies(net);
  for (const auto& [name, tensor] : optimizer.state_dict()) all.push_back(tensor);
  return all;
}

// In lanes; `loss(lane, step)` of each.
template <class Loss>
void backward_in_lanes(const Group& group, Strategy& strategy, int lanes, int step, const Loss& loss) {
  const LaneRange mine = lanes_of(group.rank(), group.size(), lanes);
  for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
    const auto scope = strategy.lane({.seed = 3,
                                      .step = step,
                                      .index = lane,
                                      .total_weight = static_cast<double>(lanes),
                                      .first = lane == mine.first,
                                      .last = lane + 1 == mine.first + mine.count});
    loss(lane, step).backward();
  }
}

// The loss of one element's gradient that is infinite, while the loss and the other gradients are finite.
torch::Tensor overflowing(SmallNet& net, const torch::Tensor& loss) {
  const float huge = std::numeric_limits<float>::max();
  return loss + (net.second->bias[1] * huge - net.second->bias[1].detach() * huge) * 2;
}

constexpr GradScalerOptions kQuickScaler{.init_scale = 1024, .growth_interval = 3};

Tensors with_an_overflow(const std::string& name, int workers, int bad_lane) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    SmallNet net;
    const auto strategy = make_strategy(name, net, group, small_buckets());
    AdamW optimizer(*strategy, {.lr = 0.02});
    GradScaler scaler(optimizer, kQuickScaler);
    std::vector<double> scales;
    for (int step = 0; step < 7; ++step) {
      const Tensors before = everything_of(net, optimizer);
      backward_in_lanes(group, *strategy, 8, step, [&](int lane, int) {
        const torch::Tensor loss = net.forward(small_batch(lane, step)).square().mean();
        return scaler.scale(step == 2 && lane == bad_lane ? overflowing(net, loss) : loss);
      });
      EXPECT_EQ(scaler.step(), step != 2) << step;
      EXPECT_EQ(equal(everything_of(net, optimizer), before), step == 2)
          << name << workers << ", step " << step;
      scales.push_back(scaler.scale());
    }
    EXPECT_EQ(scales, (std::vector<double>{1024, 1024, 512, 512, 512, 1024, 1024}));
    EXPECT_EQ(scaler.skipped(), 1);
    return copies(net);
  });
}

TEST(GradScaler, OneLanesOverflowSkipsTheStepOnEveryWorker) {
  const Tensors expected = with_an_overflow("ddp", 1, 5);
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"})
    for (const int workers : {1, 2, 3, 4, 7})
      for (const int lane : {0, 5})
        EXPECT_TRUE(equal(with_an_overflow(name, workers, lane), expected)) << name << workers;
}

TEST(GradScaler, OneThatTakesAnothersPlaceStillSees) {
  on_threads(thread_groups(2), [&](const Group& group) {
    SmallNet net;
    DataParallel ddp(net, group, small_buckets());
    ddp.watch_overflow(false);  // off twice is off
    AdamW optimizer(ddp, {.lr = 0.02});
    auto scaler = std::make_unique<GradScaler>(optimizer, kQuickScaler);
    scaler = std::make_unique<GradScaler>(optimizer, kQuickScaler);
    scaler->scale(overflowing(net, net.forward(small_batch(0, 0)).square().mean())).backward();
    EXPECT_FALSE(scaler->step());
  });
}

// A power of two on f32 gradients changes no bit.
TEST(GradScaler, WithoutOverflowAStepIsWhatItIsWithout) {
  const auto train = [](const std::string& name, int workers, bool scaled) {
    return alike_on(thread_groups(workers), [&](const Group& group) {
      SmallNet net;
      const auto strategy = make_strategy(name, net, group, small_buckets());
      SGD optimizer(*strategy, {.lr = 0.05, .momentum = 0.9});
      std::optional<GradScaler> scaler;
      if (scaled) scaler.emplace(optimizer);
      for (int step = 0; step < 4; ++step) {  // a plain loop
        const torch::Tensor loss = net.forward(small_batch(group.rank(), step)).square().mean();
        (scaled ? scaler->scale(loss) : loss).backward();
        if (scaled)
          EXPECT_TRUE(scaler->step());
        else
          optimizer.step();
        optimizer.zero_grad();
      }
      return copies(net);
    });
  };
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"})
    for (const int workers : {1, 3})
      EXPECT_TRUE(equal(train(name, workers, true), train(name, workers, false)));
}

// An exchange of a program's own may end on the thread of another group, behind everything that this group
// was given.
TEST(GradScaler, SeesWhatAnExchangeLeavesInAnotherGroup) {
  on_threads(thread_groups(2), [&](const Group& group) {
    const Group aside = group.split(0);
    StrategyOptions options = small_buckets();
    options.hook = [aside](const Bucket& bucket) {
      return aside.all_reduce_async(bucket.data, {.op = ReduceOp::avg, .divisor = bucket.divisor}).then([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      });
    };
    SmallNet net;
    DataParallel ddp(net, group, options);
    SGD optimizer(ddp, {.lr = 0.05});
    GradScaler scaler(optimizer, kQuickScaler);
    for (const int bad_step : {0, 2}) {
      for (int step = 0; step < 4; ++step) {
        const Tensors before = everything_of(net, optimizer);
        const torch::Tensor loss = net.forward(small_batch(group.rank(), step)).square().mean();
        const bool bad = step == bad_step;
        scaler.scale(bad && group.rank() == 1 ? overflowing(net, loss) : loss).backward();
        EXPECT_EQ(scaler.step(), !bad) << "rank " << group.rank() << ", step " << step;
        EXPECT_EQ(equal(everything_of(net, optimizer), before), bad) << "step " << step;
        optimizer.zero_grad();
      }
    }
  });
}

// Where each worker's gradient is finite, and only their sum is not.
TEST(GradScaler, SeesWhatOverflowsInTheSum) {
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"})
    on_threads(thread_groups(2), [&](const Group& group) {
      SmallNet net;
      const auto strategy = make_strategy(name, net, group, small_buckets());
      SGD optimizer(*strategy, {.lr = 0.05});
      GradScaler scaler(optimizer, {.init_scale = 1});
      net.forward(small_batch(group.rank(), 0)).square().mean().backward();
      EXPECT_TRUE(scaler.step());
      const Tensors before = everything_of(net, optimizer);
      optimizer.zero_grad();
      const torch::Tensor loss = net.forward(small_batch(group.rank(), 1)).square().mean();
      (loss + net.first->bias[0] * 3e38f).backward();  // finite on each worker
      EXPECT_FALSE(scaler.step());
      EXPECT_TRUE(equal(everything_of(net, optimizer), before)) << name;
    });
}

TEST(GradScaler, GoesOnFromItsStateBitForBit) {
  SmallNet net;
  const auto strategy = make_strategy("ddp", net, thread_groups(1)[0], small_buckets());
  SGD optimizer(*strategy, {.lr = 0.01});
  GradScaler one(optimizer, kQuickScaler);
  const auto step = [&](GradScaler& scaler, int number) {
    const torch::Tensor loss = net.forward(small_batch(0, number)).square().mean();
    scaler.scale(number == 1 ? overflowing(net, loss) : loss).backward();
    return scaler.step();
  };
  for (int k = 0; k < 4; ++k) step(one, k);
  const StateDict state = one.state_dict();
  GradScaler two(optimizer, kQuickScaler);
  two.load_state_dict(state);
  EXPECT_EQ(two.scale(), 512);
  EXPECT_EQ(two.skipped(), 1);
  step(two, 4);
  EXPECT_EQ(two.scale(), 1024);  // the third step without overflow
  StateDict bad = state;
  bad["scale"] = torch::full({}, -1.0, torch::kFloat64);
  expect_error<UsageError>([&] { two.load_state_dict(bad); }, {"'scale'", "more than 0"});
  bad = state;
  bad.erase("growth_tracker");
  expect_error<UsageError>([&] { two.load_state_dict(bad); }, {"'growth_tracker'", "missing"});
}

TEST(GradScaler, StopsWhenAllStepsOverflow) {
  on_threads(thread_groups(2), [&](const Group& group) {
    SmallNet net;
    const auto strategy = make_strategy("zero1", net, group, small_buckets());
    SGD optimizer(*strategy);
    GradScaler scaler(optimizer, {.init_scale = 4, .most_skipped = 3});
    const auto step = [&] {
      const torch::Tensor loss = net.forward(small_batch(group.rank(), 0)).square().mean();
      scaler.scale(group.rank() == 1 ? overflowing(net, loss) : loss).backward();
      return scaler.step();
    };
    EXPECT_FALSE(step());
    EXPECT_FALSE(step());
    expect_error<SystemError>([&] { step(); }, {"3 steps in a row", "loss scale of 1:"});
  });
}

TEST(GradScaler, RefusesOptionsThatMakeNoSense) {
  SmallNet net;
  SGD optimizer({{"w", net.first->weight}});
  for (const auto& [options, word] : std::vector<std::pair<GradScalerOptions, const char*>>{
           {{.init_scale = 0}, "init_scale"},
           {{.init_scale = std::numeric_limits<double>::quiet_NaN()}, "init_scale"},
           {{.growth_factor = 1}, "growth_factor"},
           {{.backoff_factor = 1}, "backoff_factor"},
           {{.growth_interval = 0}, "growth_interval"},
           {{.most_skipped = 0}, "most_skipped"}})
    expect_error<UsageError>([&] { GradScaler(optimizer, options); }, {"GradScaler", word});
}

// f16 parameters, of operations that the processor has: gradients too small for f16 arrive under a scaler
// alone.
TEST(GradScaler, SavesWhatF16HasNoNumbersFor) {
  struct Products : torch::nn::Module {
    torch::Tensor w = register_parameter("w", torch::full({8}, 0.5).to(torch::kHalf));
  };
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"})
    for (const bool scaled : {false, true})
      on_threads(thread_groups(2), [&](const Group& group) {
        Products net;
        const auto strategy = make_strategy(name, net, group, small_buckets());
        SGD optimizer(*strategy, {.lr = 1e4, .master_weights = MasterWeights::f32});
        GradScaler scaler(optimizer, {.init_scale = scaled ? 65536.0 : 1.0});
        scaler.scale((net.w.to(torch::kFloat32) * 1e-9f).sum()).backward();
        EXPECT_TRUE(scaler.step());
        const torch::Tensor moved = 0.5f - optimizer.state_dict().at("master/w");
        EXPECT_NEAR(moved[0].item<float>(), scaled ? 1e-5f : 0.0f, 1e-7f) << name;
      });
}

Tensors trained_in_bf16(const std::string& name, int workers, StateDict* state = nullptr) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    SmallNet net;
    to_low_precision(net, torch::kBFloat16);
    EXPECT_EQ(net.first->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(net.norm->running_mean.scalar_type(), torch::kFloat32);
    const auto strategy = make_strategy(name, net, group, small_buckets());
    AdamW optimizer(*strategy, {.lr = 1e-3, .master_weights = MasterWeights::f32});
    for (int step = 0; step < 5; ++step) {
      backward_in_lanes(group, *strategy, 2 * group.size(), step, [&](int lane, int) {
        const torch::Tensor x = small_batch(lane, step).to(torch::kBFloat16);
        return net.forward(x).to(torch::kFloat32).square().mean();
      });
      optimizer.step();
    }
    const StateDict whole = optimizer.state_dict();
    EXPECT_EQ(whole.at("master/first.weight").scalar_type(), torch::kFloat32);
    EXPECT_FALSE(whole.contains("master/norm.weight"));
    EXPECT_TRUE(torch::equal(whole.at("master/first.weight").to(torch::kBFloat16), net.first->weight));
    AdamW again(*strategy, {.lr = 1e-3, .master_weights = MasterWeights::f32});
    again.load_state_dict(whole);
    for (const auto& [entry, tensor] : again.state_dict())
      EXPECT_TRUE(torch::equal(tensor, whole.at(entry))) << entry;
    if (state != nullptr && group.rank() == 0) *state = whole;
    return copies(net);
  });
}

TEST(MasterWeights, AreTheSameInShards) {
  for (const int workers : {1, 2, 3}) {
    StateDict whole, shards;
    EXPECT_TRUE(equal(trained_in_bf16("ddp", workers, &whole), trained_in_bf16("zero1", workers, &shards)))
        << workers;
    ASSERT_EQ(whole.size(), shards.size());
    for (const auto& [name, tensor] : whole) EXPECT_TRUE(torch::equal(tensor, shards.at(name))) << name;
  }
}

// Added up in f32 no rounding shows where the run is cut: lanes on any number of workers have the same bits.
TEST(ReducePrecision, F32HasTheSameBitsOnAnyNumberOfWorkers) {
  const auto train = [](const std::string& name, int workers) {
    return alike_on(thread_groups(workers), [&](const Group& group) {
      SmallNet net;
      to_low_precision(net, torch::kBFloat16);
      StrategyOptions options = small_buckets();
      options.reduce_precision = ReducePrecision::f32;
      const auto strategy = make_strategy(name, net, group, options);
      AdamW optimizer(*strategy, {.lr = 1e-3, .master_weights = MasterWeights::f32});
      for (int step = 0; step < 4; ++step) {
        backward_in_lanes(group, *strategy, 8, step, [&](int lane, int) {
          const torch::Tensor x = small_batch(lane, step).to(torch::kBFloat16);
          return net.forward(x).to(torch::kFloat32).square().mean();
        });
        optimizer.step();
      }
      Tensors all = everything_of(net, optimizer);
      EXPECT_TRUE(torch::equal(net.first->weight,
                               optimizer.state_dict().at("master/first.weight").to(torch::kBFloat16)));
      return all;
    });
  };
  const Tensors expected = train("ddp", 1);
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"})
    for (const int workers : {1, 2, 3, 4, 8})
      EXPECT_TRUE(equal(train(name, workers), expected)) << name << workers;
}

TEST(Precision, AutocastComputesInBf16AndEndsWithItsScope) {
  const torch::Tensor x = torch::ones({2, 6});
  SmallNet net;
  {
    const Autocast scope;
    const Autocast inner;
    EXPECT_EQ(net.first->forward(x).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(net.first->forward(x).scalar_type(), torch::kFloat32);
  expect_error<UsageError>([] { const Autocast scope(torch::kFloat64); }, {"Double", "BFloat16"});
  expect_error<UsageError>([&] { to_low_precision(net, torch::kFloat64); }, {"Double", "BFloat16, Half"});
  EXPECT_EQ(missing_kernels(torch::kFloat32), "");
}

struct NarrowLine : torch::nn::Module {
  torch::nn::Linear line{nullptr};
  explicit NarrowLine(float value) {
    line = register_module("line", torch::nn::Linear(6, 3));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& p : parameters()) p.fill_(value);
    to(torch::kBFloat16);
  }
  torch::Tensor loss(int lane, int step) {
    const torch::Tensor weight = line->weight.to(torch::kFloat32), bias = line->bias.to(torch::kFloat32);
    return torch::linear(small_batch(lane, step), weight, bias).square().mean();
  }
};

// What rank 0 had comes to all, into the weights that the update begins with too.
TEST(MixedPrecision, WeightsThatAreBroadcastReachTheMasters) {
  const Tensors wrapped = alike_on(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<NarrowLine>(group.rank() == 0 ? 0.5f : 3.0f);
    std::vector<NamedTensor> list;
    for (const auto& each : net->named_parameters()) list.push_back({each.key(), each.value()});
    SGD optimizer(list, {.lr = 0.01, .master_weights = MasterWeights::f32});
    DataParallel ddp(net, group, {.check_replicas_every = 0});
    net->loss(group.rank(), 0).backward();
    optimizer.step();
    return copies(*net);
  });
  EXPECT_LT(wrapped[0].abs().max().item<float>(), 1);
  const Tensors rebound = alike_on(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<NarrowLine>(0.5f);
    DataParallel ddp(net, group, {.check_replicas_every = 0});
    SGD optimizer(ddp, {.lr = 0.01, .master_weights = MasterWeights::f32});
    net->loss(group.rank(), 0).backward();
    optimizer.step();
    optimizer.zero_grad();
    if (group.rank() == 0) {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters()) p.fill_(3);
    }
    ddp.rebind(group.split(0));
    net->loss(group.rank(), 1).backward();
    optimizer.step();
    return copies(*net);
  });
  EXPECT_GT(rebound[0].abs().max().item<float>(), 2);
}

}  // namespace
}  // namespace lockstep
