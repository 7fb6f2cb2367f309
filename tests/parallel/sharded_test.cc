// Sharded at every stage against DataParallel: the same bits, whatever the model, the loop and the number of
// workers, and a share of the model's state.
#include "lockstep/parallel/sharded.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <functional>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "lockstep/compress/bf16.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/strategy_names.h"
#include "lockstep/parallel/sync_batch_norm.h"
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

// Batch norm, weights in channels-last and in transposed memory, a parameter of f64, one that is never used,
// one that only some lanes use, one element, none at all, and a tied one.
struct OddNet : SmallNet {
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor turned, wide, never, now_and_then, single, nothing;
  OddNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)));
    turned = register_parameter("turned", torch::zeros({6, 7}).t().detach());
    wide = register_parameter("wide", torch::linspace(-1, 1, 19, torch::kFloat64));
    never = register_parameter("never", torch::ones({33}));
    now_and_then = register_parameter("now_and_then", torch::ones({4, 3}));
    single = register_parameter("single", torch::ones({}));
    nothing = register_parameter("nothing", torch::ones({0, 3}));
    register_module("second_again", second.ptr());
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    float x = 0.1f;
    for (auto& p : parameters()) {
      p.copy_(torch::linspace(-x, x + 0.05f, p.numel()).view(p.sizes()));
      x += 0.05f;
    }
  }
  torch::Tensor loss(int lane, int step) {
    const torch::Tensor x = small_batch(lane, step);
    const torch::Tensor image = x.repeat({1, 8}).view({4, 3, 4, 4});
    torch::Tensor sum = SmallNet::forward(x).square().mean() + conv->forward(image).square().mean() +
                        x.matmul(turned.t()).square().mean() * single +
                        (wide * (lane + 1)).square().mean().to(torch::kFloat32);
    if (lane % 3 == 1) sum = sum + now_and_then.square().mean() * static_cast<float>(step + 1);
    return sum;
  }
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(GradientSource&)>;

std::unique_ptr<Optimizer> adamw(GradientSource& source) {
  auto optimizer = std::make_unique<AdamW>(source, AdamWOptions{.lr = 0.02});
  // Found by name, whoever has how much of them.
  EXPECT_EQ(optimizer->add_group({.match = [](const std::string& name) { return name.ends_with("bias"); },
                                  .lr_scale = 2,
                                  .weight_decay = 0}),
            4u);
  return optimizer;
}

std::unique_ptr<Optimizer> momentum(GradientSource& source) {
  return std::make_unique<SGD>(source, SGDOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true});
}

// Small buckets, so that there are several, cut in the middle of parameters.
StrategyOptions small() {
  return {.bucket_cap_mb = 4e-4, .first_bucket_mb = 1e-4, .check_replicas_every = 1};
}

class ShardedAt : public ::testing::TestWithParam<ShardStage> {
 protected:
  // Of make_strategy.
  static std::string name() { return "zero" + std::to_string(static_cast<int>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(
    Stage, ShardedAt, ::testing::Values(ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters),
    [](const auto& stage) { return "Zero" + std::to_string(static_cast<int>(stage.param)); });

void lanes_of_a_step(const Group& group, int lanes, int step, OddNet& net, Strategy& strategy) {
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

Tensors train_in_lanes(const std::string& strategy, const MakeOptimizer& make, const Group& group,
                       int lanes) {
  OddNet net;
  const auto model = make_strategy(strategy, net, group, small());
  const auto optimizer = make(*model);
  for (int step = 0; step < 5; ++step) {
    lanes_of_a_step(group, lanes, step, net, *model);
    optimizer->step();
  }
  model->check_replicas();
  return copies(net);
}

Tensors in_lanes(const std::string& strategy, const MakeOptimizer& make, int workers, int lanes) {
  return alike_on(thread_groups(workers),
                  [&](const Group& group) { return train_in_lanes(strategy, make, group, lanes); });
}

TEST_P(ShardedAt, HasTheBitsOfDataParallelOnAnyNumberOfWorkers) {
  for (const MakeOptimizer make : {adamw, momentum}) {
    const Tensors expected = in_lanes("ddp", make, 1, 8);
    for (const int workers : {1, 2, 3, 4, 8})
      EXPECT_TRUE(equal(in_lanes(name(), make, workers, 8), expected)) << workers << " workers";
  }
}

TEST_P(ShardedAt, WorkersWithoutLanesGetTheUpdates) {
  const Tensors expected = in_lanes("ddp", adamw, 1, 9);
  for (const int workers : {5, 7, 8})  // of whom some have no lane
    EXPECT_TRUE(equal(in_lanes(name(), adamw, workers, 9), expected)) << workers << " workers";
}

// A plain loop with accumulation, clipping, and a step in which one worker skips its backward.
Tensors in_a_plain_loop(const std::string& strategy, int workers) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    OddNet net;
    const auto model = make_strategy(strategy, net, group, small());
    const auto optimizer = adamw(*model);
    double norms = 0;
    for (int step = 0; step < 6; ++step) {
      optimizer->zero_grad();
      {
        const auto guard = model->no_sync();
        net.loss(group.rank() + 10, step).backward();
      }
      if (step != 3 || group.rank() + 1 != group.size()) net.loss(group.rank(), step).backward();
      norms += clip_grad_norm_(*model, 0.5, step % 2 == 0 ? 2.0 : std::numeric_limits<double>::infinity());
      optimizer->step();
    }
    Tensors all = copies(net);
    all.push_back(torch::scalar_tensor(norms, torch::kFloat64));
    return all;
  });
}

TEST_P(ShardedAt, AccumulatesAndClipsWithTheBitsOfDataParallel) {
  for (const int workers : {1, 2, 3, 5})
    EXPECT_TRUE(equal(in_a_plain_loop(name(), workers), in_a_plain_loop("ddp", workers))) << workers;
}

// Half of a run, its state, and the other half under another strategy and another number of workers.
TEST_P(ShardedAt, StateReadsTheSameUnderAnyCut) {
  struct Part {
    std::string strategy;
    int workers;
  };
  const Tensors expected = in_lanes("ddp", adamw, 1, 8);
  for (const auto& [before, after] : std::vector<std::pair<Part, Part>>{{{name(), 3}, {"ddp", 1}},
                                                                        {{"ddp", 2}, {name(), 3}},
                                                                        {{name(), 4}, {name(), 2}},
                                                                        {{name(), 2}, {"zero2", 3}}}) {
    StateDict state;
    Tensors weights;
    on_threads(thread_groups(before.workers), [&](const Group& group) {
      OddNet net;
      const auto model = make_strategy(before.strategy, net, group, small());
      const auto optimizer = adamw(*model);
      for (int step = 0; step < 3; ++step) {
        lanes_of_a_step(group, 8, step, net, *model);
        optimizer->step();
      }
      const StateDict whole = optimizer->state_dict(group.rank() == 0);
      EXPECT_EQ(whole.empty(), group.rank() != 0);
      if (group.rank() != 0) return;
      state = whole;
      weights = copies(net);
    });
    EXPECT_EQ(state.at("exp_avg/conv.weight").sizes(), (std::vector<std::int64_t>{5, 3, 3, 3}));
    EXPECT_EQ(state.at("step/never").item<std::int64_t>(), 0);
    EXPECT_EQ(state.at("step/single").item<std::int64_t>(), 3);
    const Tensors result = alike_on(thread_groups(after.workers), [&](const Group& group) {
      OddNet net;
      {
        const torch::NoGradGuard no_grad;
        std::size_t k = 0;
        for (auto& p : net.parameters()) p.copy_(weights[k++]);
        for (auto& b : net.buffers()) b.copy_(weights[k++]);
      }
      const auto model = make_strategy(after.strategy, net, group, small());
      const auto optimizer = adamw(*model);
      optimizer->load_state_dict(state);
      for (int step = 3; step < 5; ++step) {
        lanes_of_a_step(group, 8, step, net, *model);
        optimizer->step();
      }
      return copies(net);
    });
    EXPECT_TRUE(equal(result, expected))
        << before.strategy << " " << before.workers << " → " << after.strategy << " " << after.workers;
  }
}

TEST_P(ShardedAt, KeepsItsShareOfTheStateAlone) {
  on_threads(thread_groups(4), [this](const Group& group) {
    SmallNet net;
    SmallNet other;
    Sharded sharded(net, group, GetParam());
    DataParallel ddp(other, group);
    const AdamW part(sharded);
    const AdamW whole(ddp);
    std::vector<std::int64_t> bytes = {static_cast<std::int64_t>(part.state_bytes())};
    EXPECT_LT(bytes[0], static_cast<std::int64_t>(whole.state_bytes()) / 2);
    group.all_reduce(bytes);
    EXPECT_EQ(bytes[0], static_cast<std::int64_t>(whole.state_bytes()));
  });
}

// Slices cover every element once, and lie where the parameters and the gradients do.
TEST_P(ShardedAt, SlicesAreACutOfTheParameters) {
  on_threads(thread_groups(3), [this](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), small());
    const std::vector<NamedTensor> parameters = sharded.parameters();
    const std::span<const Slice> slices = sharded.slices();
    ASSERT_EQ(slices.size(), parameters.size());
    std::vector<std::int64_t> covered;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const torch::Tensor& whole = parameters[i].tensor;
      EXPECT_EQ(slices[i].name, parameters[i].name);
      EXPECT_EQ(slices[i].whole, whole.sizes().vec());
      EXPECT_EQ(slices[i].elements.count(), static_cast<std::size_t>(slices[i].parameter.numel()));
      EXPECT_FALSE(slices[i].gradient.defined());
      for (std::int64_t k = 0; k < whole.numel(); ++k)
        covered.push_back(static_cast<std::size_t>(k) >= slices[i].elements.begin &&
                          static_cast<std::size_t>(k) < slices[i].elements.end);
      const torch::Tensor flat = whole.detach().as_strided({whole.numel()}, {1});
      EXPECT_TRUE(torch::equal(slices[i].parameter,
                               flat.narrow(0, static_cast<std::int64_t>(slices[i].elements.begin),
                                           static_cast<std::int64_t>(slices[i].elements.count()))));
    }
    group.all_reduce(covered);
    EXPECT_EQ(covered, std::vector<std::int64_t>(covered.size(), 1));
  });
}

// What the workers wait for behind the optimizer is in the log too.
TEST_P(ShardedAt, TellsHowItsUpdatesWereShared) {
  on_threads(thread_groups(2), [this](const Group& group) {
    SmallNet net, other;
    Sharded sharded(net, group, GetParam(), small());
    DataParallel ddp(other, group, small());
    SGD optimizer(sharded), whole(ddp);
    for (int step = 0; step < 2; ++step) {
      net.forward(small_batch(group.rank(), step)).square().mean().backward();
      sharded.synchronize();
      EXPECT_TRUE(sharded.last_exchange().shared.empty());  // those of the step before are forgotten
      optimizer.step();
      const ExchangeLog& log = sharded.last_exchange();
      if (GetParam() == ShardStage::parameters) {  // all see one copy
        EXPECT_TRUE(log.shared.empty());
        continue;
      }
      ASSERT_EQ(log.shared.size(), log.buckets.size());
      for (std::size_t b = 0; b < log.shared.size(); ++b) {
        EXPECT_EQ(log.shared[b].bytes, log.buckets[b].bytes);
        EXPECT_GE(log.shared[b].start_ns, log.share_begin_ns);
        EXPECT_GE(log.shared[b].running_ns, log.shared[b].start_ns);
        EXPECT_GE(log.shared[b].end_ns, log.shared[b].running_ns);
        EXPECT_LE(log.shared[b].end_ns, log.share_end_ns);
        EXPECT_FALSE(log.shared[b].algorithm.empty());
      }
      EXPECT_GE(log.share_begin_ns, log.wait_end_ns);
    }
    other.forward(small_batch(group.rank(), 0)).square().mean().backward();
    whole.step();
    EXPECT_TRUE(ddp.last_exchange().shared.empty());
  });
}

TEST_P(ShardedAt, LeavesNoGradientThatIsNotTheMean) {
  on_threads(thread_groups(2), [this](const Group& group) {
    SmallNet net;
    Sharded sharded(net, group, GetParam());
    net.forward(small_batch(group.rank(), 0)).square().mean().backward();
    for (const auto& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

// Optimizers that know nothing of slices would leave every parameter as it is, without a word.
TEST_P(ShardedAt, AnOptimizerThatFindsNoGradientIsNamed) {
  on_threads(thread_groups(2), [this](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam());
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    const auto step = [&](int number) {
      lanes_of_a_step(group, 2, number, net, sharded);
      optimizer.step();
    };
    step(0);
    expect_error<UsageError>([&] { step(1); }, {"Sharded", "nothing is trained", "SGD, Adam, AdamW"});
  });
}

// An optimizer of ours that skips its steps, and somebody who only looks at the gradients.
TEST_P(ShardedAt, StepsThatAreSkippedAreNoMistake) {
  on_threads(thread_groups(2), [this](const Group& group) {
    OddNet skipped, looked_at;
    Sharded sharded(skipped, group, GetParam()), other(looked_at, group, GetParam());
    const SGD optimizer(sharded);
    for (int step = 0; step < 3; ++step) {
      lanes_of_a_step(group, 2, step, skipped, sharded);
      lanes_of_a_step(group, 2, step, looked_at, other);
      EXPECT_GT(clip_grad_norm_(other, 1e9), 0);
    }
  });
}

TEST_P(ShardedAt, AParameterThatWasMovedAwayIsNamed) {
  SmallNet net;
  Sharded sharded(net, thread_groups(1)[0], GetParam());
  SGD optimizer(sharded);
  net.second->weight.set_data(net.second->weight.detach().clone());
  net.forward(small_batch(0, 0)).square().mean().backward();
  expect_error<UsageError>([&] { optimizer.step(); }, {"'second.weight'", "other memory", "copy_"});
}

// Before anything is updated: the state and the moved parameter are as they were.
TEST_P(ShardedAt, NothingIsUpdatedWhenAParameterWasMovedAway) {
  SmallNet net;
  Sharded sharded(net, thread_groups(1)[0], GetParam());
  AdamW optimizer(sharded);
  net.forward(small_batch(0, 0)).square().mean().backward();
  net.second->weight.set_data(net.second->weight.detach().clone());
  const Tensors before = copies(net);
  expect_error<UsageError>([&] { optimizer.step(); }, {"'second.weight'", "other memory"});
  EXPECT_TRUE(equal(copies(net), before));
  expect_error<UsageError>([&] { clip_grad_norm_(sharded, 1.0); }, {"'second.weight'", "other memory"});
}

TEST_P(ShardedAt, ASecondExchangeInOneStepIsRefused) {
  on_threads(thread_groups(2), [this](const Group& group) {
    SmallNet net;
    Sharded sharded(net, group, GetParam());
    SGD optimizer(sharded);
    const auto backward = [&](int step) {
      net.forward(small_batch(group.rank(), step)).square().mean().backward();
    };
    backward(0);
    expect_error<UsageError>([&] { backward(1); }, {"exchanged", "no_sync()", "zero_grad()"});
    sharded.reset();
    backward(2);
    optimizer.zero_grad();  // given up
    backward(3);
    optimizer.step();
    backward(4);  // step() has forgotten those before
    optimizer.step();
  });
}

// Views on one memory are two parameters to libtorch: each would get memory of its own.
TEST_P(ShardedAt, WeightsTiedByMemoryAreRefused) {
  struct Tied : SmallNet {
    Tied() { register_parameter("again", torch::zeros({3, 8})).set_data(second->weight.detach()); }
  } tied;
  const Group alone = thread_groups(1)[0];
  expect_error<UsageError>([&] { Sharded(tied, alone, GetParam()); },
                           {"'again'", "'second.weight'", "same memory"});
  const DataParallel fine(tied, alone);
  struct Watched : SmallNet {
    Watched() { register_buffer("seen", second->bias.detach()); }
  } watched;
  expect_error<UsageError>([&] { Sharded(watched, alone, GetParam()); },
                           {"'second.bias'", "'seen'", "same memory"});
}

TEST_P(ShardedAt, OnlyWhatWasUpdatedHasANewVersion) {
  OddNet net;
  Sharded sharded(net, thread_groups(1)[0], GetParam());
  SGD optimizer(sharded);
  const auto never = net.never._version();
  const auto second = net.second->weight._version();
  net.loss(0, 0).backward();
  optimizer.step();
  EXPECT_EQ(net.never._version(), never);
  EXPECT_GT(net.second->weight._version(), second);
}

// Slices that somebody kept can be read when the strategy is gone.
TEST_P(ShardedAt, KeptGradientsHoldTheirMemory) {
  SmallNet net;
  torch::Tensor kept;
  torch::Tensor then;
  {
    Sharded sharded(net, thread_groups(1)[0], GetParam());
    net.forward(small_batch(0, 0)).square().mean().backward();
    kept = sharded.slices()[0].gradient;
    then = kept.clone();
  }
  EXPECT_TRUE(torch::equal(kept, then));
}

struct WideNet : torch::nn::Module {  // ten buckets of 16 KiB
  std::vector<torch::Tensor> weights;
  WideNet() {
    for (int k = 0; k < 10; ++k)
      weights.push_back(register_parameter("weight" + std::to_string(k), torch::full({4096}, 0.1 * k)));
  }
  torch::Tensor loss(int lane) {
    torch::Tensor x = torch::full({4096}, 0.5 + lane);
    for (const torch::Tensor& weight : weights) x = x * weight + 1;
    return x.mean();
  }
};
constexpr std::size_t kWideBytes = 10 * 4096 * sizeof(float);
const StrategyOptions kTenBuckets{.bucket_cap_mb = 1.0 / 64, .first_bucket_mb = 1.0 / 64};

TEST(Sharded, GradientsHaveMemoryOnlyWhileTheyTravel) {
  on_threads(thread_groups(4), [](const Group& group) {
    for (const bool accumulates : {false, true}) {
      WideNet net;
      Sharded sharded(net, group, ShardStage::gradients, kTenBuckets);
      SGD optimizer(sharded);
      for (int step = 0; step < 3; ++step) {
        if (accumulates) {
          const auto guard = sharded.no_sync();
          net.loss(group.rank() + 4).backward();
        }
        net.loss(group.rank()).backward();
        optimizer.step();
      }
      // Its part, the bucket that is filled and those under way; or, where sums wait, all.
      const std::size_t most = kWideBytes / 4 + (1 + 2) * kWideBytes / 10;
      if (accumulates)
        EXPECT_GE(sharded.gradient_bytes(), kWideBytes);
      else
        EXPECT_LE(sharded.gradient_bytes(), most);
      EXPECT_GE(sharded.gradient_bytes(), kWideBytes / 4);
    }
  });
}

// Buckets leave in their order: behind one whose parameter is not used they wait, each in memory of its own.
TEST(Sharded, BucketsBehindOneThatWaitsHaveMemoryEach) {
  on_threads(thread_groups(4), [](const Group& group) {
    WideNet net;
    net.register_parameter("never", torch::zeros({4096}));
    Sharded sharded(net, group, ShardStage::gradients, kTenBuckets);
    SGD optimizer(sharded);
    net.loss(group.rank()).backward();
    optimizer.step();
    EXPECT_GE(sharded.gradient_bytes(), kWideBytes + kWideBytes / 4);
  });
}

TEST(Sharded, WorkersSeeOneCopyOfTheParameters) {
  on_threads(thread_groups(4), [](const Group& group) {
    WideNet net;
    const torch::Tensor frozen =
        net.register_parameter("frozen", torch::zeros({100}), /*requires_grad=*/false);
    Sharded sharded(net, group, ShardStage::parameters, kTenBuckets);
    EXPECT_EQ(sharded.parameter_bytes(), kWideBytes / 4 + 100 * sizeof(float));
    {
      const torch::NoGradGuard no_grad;
      if (group.rank() == 2) net.weights[3].fill_(7);
      frozen.fill_(group.rank());
    }
    group.barrier();
    EXPECT_TRUE(torch::equal(net.weights[3], torch::full({4096}, 7.0f)));
    EXPECT_TRUE(torch::equal(frozen, torch::full({100}, static_cast<float>(group.rank()))));
  });
}

// Whichever rank's model goes first: the first rank's memory it is.
TEST(Sharded, TheCopyStaysAsLongAsAModelDoes) {
  on_threads(thread_groups(3), [](const Group& group) {
    auto net = std::make_shared<WideNet>();
    { const Sharded sharded(net, group, ShardStage::parameters, kTenBuckets); }
    if (group.rank() == 0) net.reset();
    group.barrier();
    if (group.rank() == 0) return;
    EXPECT_TRUE(torch::equal(net->weights[9], torch::full({4096}, 0.1 * 9)));
  });
}

// One copy a machine, in which the others' updates arrive: equal and unequal machines, ranks in any order.
TEST(Sharded, SeveralMachinesHaveACopyEach) {
  const Tensors expected = in_lanes("ddp", adamw, 1, 8);
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1, 2}}) {
    const Tensors result =
        alike_on(lockstep::testing::node_groups(nodes, net::Security::plaintext),
                 [&](const Group& group) { return train_in_lanes("zero3", adamw, group, 8); });
    EXPECT_TRUE(equal(result, expected)) << ::testing::PrintToString(nodes);
  }
}

TEST(Sharded, WorkersWithoutCommonMemoryAreRefused) {
  on_threads(lockstep::testing::tcp_groups(2, net::Security::plaintext), [](const Group& group) {
    WideNet net;
    expect_error<UsageError>([&] { Sharded(net, group, ShardStage::parameters); },
                             {"zero3", "tcp", "accepted", "zero2"});
    Sharded fine(net, group, ShardStage::gradients, kTenBuckets);
    SGD optimizer(fine);
    net.loss(group.rank()).backward();
    optimizer.step();
    fine.check_replicas();
  });
}

// A module that parameters in shards leave behind is on the common copy. Whoever updates whole parameters
// gives every worker its own first.
TEST(Sharded, AModelOfOneCopyTrainsUnderDataParallelBehindIt) {
  const auto train = [](const Group& group, bool wrapped_before) {
    OddNet net;
    if (wrapped_before) {
      const Sharded sharded(net, group, ShardStage::parameters, small());
    }
    DataParallel ddp(net, group, small());
    const auto optimizer = momentum(ddp);
    for (int step = 0; step < 3; ++step) {
      lanes_of_a_step(group, 4, step, net, ddp);
      optimizer->step();
      group.barrier();
    }
    return copies(net);
  };
  const Tensors expected =
      alike_on(thread_groups(4), [&](const Group& group) { return train(group, false); });
  EXPECT_TRUE(
      equal(alike_on(thread_groups(4), [&](const Group& group) { return train(group, true); }), expected));
}

// An exchange that leaves everything leaves nothing in grad() where the bucket's memory goes on to the next.
TEST_P(ShardedAt, GradientsOfAnExchangeThatLeavesEverythingAreNotLost) {
  if (GetParam() == ShardStage::optimizer) return;  // grad() is the mean there, and adds up as DataParallel's
  StrategyOptions options = small();
  options.hook = all_reduce_exchange().run;
  on_threads(thread_groups(2), [&](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), options);
    const SGD optimizer(sharded);
    net.loss(group.rank(), 0).backward();
    expect_error<UsageError>([&] { net.loss(group.rank(), 1).backward(); }, {"exchanged", "no_sync()"});
  });
  on_threads(thread_groups(2), [&](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), options);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    lanes_of_a_step(group, 2, 0, net, sharded);
    expect_error<UsageError>([&] { lanes_of_a_step(group, 2, 1, net, sharded); }, {"nothing is trained"});
  });
}

// Weights are loaded on every worker, as elsewhere: the masters of a worker take over what that one has
// written.
TEST_P(ShardedAt, MastersTakeOverWhatWasLoaded) {
  const auto train = [](const std::string& strategy, const Group& group) {
    WideNet net;
    net.to(torch::kBFloat16);
    const auto model = make_strategy(strategy, net, group, kTenBuckets);
    SGD optimizer(*model, {.lr = 0.01, .master_weights = MasterWeights::f32});
    for (int step = 0; step < 3; ++step) {
      if (step == 2) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& weight : net.weights) weight.fill_(0.25);
        group.barrier();
      }
      optimizer.zero_grad();
      net.loss(group.rank()).backward();
      optimizer.step();
    }
    group.barrier();
    return copies(net);
  };
  const auto on_two = [&](const std::string& strategy) {
    return alike_on(thread_groups(2), [&](const Group& group) { return train(strategy, group); });
  };
  EXPECT_TRUE(equal(on_two(name()), on_two("ddp")));
}

// Weights on both sides of a norm, the last of which only one worker uses.
struct NormedNet : torch::nn::Module {
  SyncBatchNorm norm{nullptr};
  std::shared_ptr<torch::nn::Module> tail = std::make_shared<torch::nn::Module>();
  torch::Tensor first;
  std::vector<torch::Tensor> weights;
  torch::Tensor now_and_then;
  NormedNet() {
    first = register_parameter("first", torch::ones({4}));
    norm = register_module("norm", SyncBatchNorm(4));
    register_module("tail", tail);
    for (int k = 0; k < 6; ++k)
      weights.push_back(tail->register_parameter("weight" + std::to_string(k), torch::ones({4})));
    now_and_then = tail->register_parameter("now_and_then", torch::ones({4}));
  }
  torch::Tensor loss(int rank) {
    torch::Tensor x = norm(torch::arange(12).view({3, 4}) * first * (rank + 1));
    for (const torch::Tensor& weight : weights) x = x * weight + 1;
    if (rank == 0) x = x * now_and_then;
    return x.square().mean();
  }
};

// The first bucket leaves at the end of backward where its parameter is not used. Nobody may wait for it in
// the middle of his own, where SyncBatchNorm waits for everybody.
TEST_P(ShardedAt, UnusedParametersBehindSyncBatchNormHangNobody) {
  const auto train = [](const std::string& strategy) {
    return alike_on(thread_groups(2, {.timeout = std::chrono::seconds(5)}), [&](const Group& group) {
      NormedNet net;
      const auto model =
          make_strategy(strategy, net, group, {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
      const auto optimizer = momentum(*model);
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        net.loss(group.rank()).backward();
        optimizer->step();
      }
      return copies(net);
    });
  };
  EXPECT_TRUE(equal(train(name()), train("ddp")));
}

// Tied weights are there once.
TEST_P(ShardedAt, TellsTheMemoryOfTiedWeightsOnce) {
  on_threads(thread_groups(2), [this](const Group& group) {
    OddNet net;
    Sharded sharded(net, group, GetParam(), small());
    std::size_t bytes = 0;
    for (const NamedTensor& parameter : sharded.parameters()) bytes += parameter.tensor.nbytes();
    if (GetParam() == ShardStage::parameters)
      EXPECT_LT(sharded.parameter_bytes(), bytes * 3 / 4);
    else
      EXPECT_EQ(sharded.parameter_bytes(), bytes);
  });
}

// Backward fails in the middle, on every worker, when some buckets have left: the step is taken again.
TEST_P(ShardedAt, AStepThatFailedHalfwayIsTakenAgain) {
  const auto train = [](const std::string& strategy) {
    return alike_on(thread_groups(2), [&](const Group& group) {
      WideNet net;
      const auto model = make_strategy(strategy, net, group, kTenBuckets);
      const auto optimizer = momentum(*model);
      bool fails = false;
      const auto backward = [&](int step) {
        torch::Tensor x = torch::full({4096}, 0.5 + group.rank() + step);
        for (std::size_t k = 0; k < net.weights.size(); ++k) {
          x = x * net.weights[k] + 1;
          if (k == 4)
            x.register_hook([&](const torch::Tensor& gradient) {
              if (fails) throw std::runtime_error("half of it");
              return gradient;
            });
        }
        x.mean().backward();
      };
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          fails = true;
          EXPECT_ANY_THROW(backward(step));
          fails = false;
          model->reset();
        }
        optimizer->zero_grad();
        if (step % 2 == 1) {
          const auto guard = model->no_sync();
          backward(step + 1);
        }
        backward(step);
        optimizer->step();
      }
      return copies(net);
    });
  };
  EXPECT_TRUE(equal(train(name()), train("ddp")));
}

// Types of several sizes, one of whose buckets is empty, in the same slots; compressed too.
TEST_P(ShardedAt, EmptyBucketsAndCompressedOnesHaveTheBitsOfZero1) {
  struct Mixed : WideNet {
    Mixed() {
      register_parameter("no_doubles", torch::zeros({0, 2}, torch::kFloat64));
      halves = register_parameter("halves", torch::ones({77}, torch::kBFloat16));
    }
    torch::Tensor halves;
  };
  for (const bool compressed : {false, true}) {
    const auto train = [&](const std::string& strategy) {
      return alike_on(thread_groups(3), [&](const Group& group) {
        Mixed net;
        StrategyOptions options = kTenBuckets;
        if (compressed) options.exchange = bf16_exchange;
        const auto model = make_strategy(strategy, net, group, options);
        SGD optimizer(*model, {.lr = 0.01});
        GradScaler scaler(optimizer);
        for (int step = 0; step < 4; ++step) {
          torch::Tensor loss = net.loss(group.rank()) + net.halves.square().sum().to(torch::kFloat32);
          if (step == 1 && group.rank() == 2) loss = loss * std::numeric_limits<float>::infinity();
          optimizer.zero_grad();
          scaler.scale(loss).backward();
          scaler.step();
        }
        return copies(net);
      });
    };
    EXPECT_TRUE(equal(train(name()), train(compressed ? "zero1" : "ddp"))) << compressed;
  }
}

// 16 bits with master weights under LARS and LAMB, sums in either type, lanes of weight 0, and lanes
// measured.
TEST_P(ShardedAt, SixteenBitsUnderLayerwiseOptimizersHaveTheBitsOfDataParallel) {
  struct Halves : WideNet {
    Halves() {
      to(torch::kBFloat16);
      register_parameter("wide", torch::ones({5}));
    }
  };
  for (const ReducePrecision precision : {ReducePrecision::same, ReducePrecision::f32})
    for (const bool lamb : {false, true}) {
      const auto train = [&](const std::string& strategy, int workers) {
        return alike_on(thread_groups(workers), [&](const Group& group) {
          Halves net;
          StrategyOptions options = kTenBuckets;
          options.reduce_precision = precision;
          options.measure_lanes = true;
          const auto model = make_strategy(strategy, net, group, options);
          std::unique_ptr<Optimizer> optimizer;
          if (lamb)
            optimizer = std::make_unique<LAMB>(
                *model, LAMBOptions{.lr = 0.01, .vectors = true, .master_weights = MasterWeights::f32});
          else
            optimizer = std::make_unique<LARS>(
                *model, LARSOptions{.lr = 0.5, .vectors = true, .master_weights = MasterWeights::f32});
          std::vector<double> squares(4, 0.0);
          const LaneRange mine = lanes_of(group.rank(), group.size(), 4);
          for (int step = 0; step < 4; ++step) {
            for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
              const auto scope = model->lane({.seed = 3,
                                              .step = step,
                                              .index = lane,
                                              .weight = lane == step ? 0.0 : 1.0 + lane,
                                              .total_weight = 10.0 - 1.0 - step,
                                              .first = lane == mine.first,
                                              .last = lane + 1 == mine.first + mine.count});
              net.loss(lane + step).backward();
            }
            model->synchronize();
            const std::vector<double> own = model->lane_squares();
            for (std::size_t k = 0; k < own.size(); ++k)
              squares[static_cast<std::size_t>(mine.first) + k] += own[k];
            clip_grad_norm_(*model, 0.5);
            optimizer->step();
          }
          group.all_reduce(squares);
          Tensors all = copies(net);
          all.push_back(torch::tensor(squares, torch::kFloat64));
          return all;
        });
      };
      const Tensors expected = train("ddp", 1);
      for (const int workers : {1, 2, 3, 4})
        EXPECT_TRUE(equal(train(name(), workers), expected))
            << workers << " workers, " << (lamb ? "LAMB" : "LARS") << ", " << static_cast<int>(precision);
    }
}

// Memory that is short leaves the model where it was: another strategy may be tried.
TEST_P(ShardedAt, AModelThatFindsNoRoomIsNotMovedHalfway) {
  ::setenv("LOCKSTEP_ARENA", "64M", 1);
  const std::vector<Group> groups = thread_groups(2);
  ::unsetenv("LOCKSTEP_ARENA");
  on_threads(groups, [this](const Group& group) {
    torch::nn::Module net;
    std::vector<const void*> places;
    const int count =
        GetParam() == ShardStage::optimizer ? 10 : 20;  // whose gradients have room, or none yet
    for (int k = 0; k < count; ++k)
      places.push_back(
          net.register_parameter("weight" + std::to_string(k), torch::ones({1 << 20})).data_ptr());
    expect_error<SystemError>(
        [&] { Sharded(net, group, GetParam(), {.bucket_cap_mb = 4, .first_bucket_mb = 4}); },
        {"cannot allocate", "LOCKSTEP_ARENA"});
    for (std::size_t k = 0; k < places.size(); ++k) EXPECT_EQ(net.parameters()[k].data_ptr(), places[k]);
  });
}

TEST(Strategies, TellAllMemoryOfGradients) {
  const Group alone = thread_groups(1)[0];
  OddNet net;
  DataParallel ddp(net, alone, {.bucket_cap_mb = 25, .first_bucket_mb = 25});
  const std::size_t one_lane = ddp.gradient_bytes();
  for (int step = 0; step < 2; ++step) {  // in three sets; the buckets are laid out anew after the first
    lanes_of_a_step(alone, 8, step, net, ddp);
    ddp.end_step();
  }
  std::size_t gradients = 0;
  for (const NamedTensor& parameter : ddp.parameters()) gradients += parameter.tensor.nbytes();
  EXPECT_GE(ddp.gradient_bytes(), one_lane + 2 * gradients);
}

TEST(Strategies, AnExchangeThatCantBeIsRefused) {
  const Group alone = thread_groups(1)[0];
  SmallNet net;
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3"}) {
    const auto make = [&](const StrategyOptions& options) {
      return [&, options] { make_strategy(name, net, alone, options); };
    };
    const auto own = [](Exchange::Leaves) { return all_reduce_exchange(); };
    const auto hook = [](const Bucket&) { return Work(); };
    expect_error<UsageError>(make({.exchange = [](auto) { return Exchange{.name = "empty", .run = {}}; }}),
                             {"'empty'", "`run`"});
    expect_error<UsageError>(make({.algorithm = "tree", .exchange = own}),
                             {"`algorithm`", "`exchange`", "without them"});
    expect_error<UsageError>(make({.order = Order::any, .exchange = own}), {"`order`", "`exchange`"});
    expect_error<UsageError>(make({.algorithm = "tree", .hook = hook}), {"`algorithm`", "`hook`"});
  }
}

TEST(Strategies, AreMadeByName) {
  const Group alone = thread_groups(1)[0];
  SmallNet net;
  EXPECT_NE(dynamic_cast<DataParallel*>(make_strategy("ddp", net, alone).get()), nullptr);
  EXPECT_NE(dynamic_cast<Sharded*>(make_strategy("zero2", net, alone).get()), nullptr);
  expect_error<UsageError>([&] { make_strategy("dpp", net, alone); }, {"'dpp'", "ddp, zero1, zero2, zero3"});
  expect_error<UsageError>([&] { leaves_of("dpp"); }, {"'dpp'", "ddp, zero1, zero2, zero3"});
  for (const char* const name : kStrategyNames)
    EXPECT_EQ(leaves_of(name), make_strategy(name, net, alone)->exchange().leaves) << name;
  expect_error<UsageError>(
      [&] { DataParallel(net, alone, {.exchange = [](auto) { return reduce_scatter_exchange(); }}); },
      {"reduce-scatter", "a part of the gradients"});
}

}  // namespace
}  // namespace lockstep
