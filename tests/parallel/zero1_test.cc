// Zero1 against DataParallel: the same bits, whatever the model, the loop and the number of workers, and a
// share of the optimizer's state.
#include "lockstep/parallel/zero1.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>

#include <functional>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/strategy_names.h"
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

Tensors in_lanes(const std::string& strategy, const MakeOptimizer& make, int workers, int lanes) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    OddNet net;
    const auto model = make_strategy(strategy, net, group, small());
    const auto optimizer = make(*model);
    for (int step = 0; step < 5; ++step) {
      lanes_of_a_step(group, lanes, step, net, *model);
      optimizer->step();
    }
    model->check_replicas();
    return copies(net);
  });
}

TEST(Zero1, HasTheBitsOfDataParallelOnAnyNumberOfWorkers) {
  for (const MakeOptimizer make : {adamw, momentum}) {
    const Tensors expected = in_lanes("ddp", make, 1, 8);
    for (const int workers : {1, 2, 3, 4, 8})
      EXPECT_TRUE(equal(in_lanes("zero1", make, workers, 8), expected)) << workers << " workers";
  }
}

TEST(Zero1, WorkersWithoutLanesGetTheUpdates) {
  const Tensors expected = in_lanes("ddp", adamw, 1, 9);
  for (const int workers : {5, 7, 8})  // of whom some have no lane
    EXPECT_TRUE(equal(in_lanes("zero1", adamw, workers, 9), expected)) << workers << " workers";
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

TEST(Zero1, AccumulatesAndClipsWithTheBitsOfDataParallel) {
  for (const int workers : {1, 2, 3, 5})
    EXPECT_TRUE(equal(in_a_plain_loop("zero1", workers), in_a_plain_loop("ddp", workers))) << workers;
}

// Half of a run, its state, and the other half under another strategy and another number of workers.
TEST(Zero1, StateReadsTheSameUnderAnyCut) {
  struct Part {
    const char* strategy;
    int workers;
  };
  const Tensors expected = in_lanes("ddp", adamw, 1, 8);
  for (const auto& [before, after] : std::vector<std::pair<Part, Part>>{
           {{"zero1", 3}, {"ddp", 1}}, {{"ddp", 2}, {"zero1", 3}}, {{"zero1", 4}, {"zero1", 2}}}) {
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

TEST(Zero1, KeepsItsShareOfTheStateAlone) {
  on_threads(thread_groups(4), [](const Group& group) {
    SmallNet net;
    SmallNet other;
    Zero1 zero1(net, group);
    DataParallel ddp(other, group);
    const AdamW sharded(zero1);
    const AdamW whole(ddp);
    std::vector<std::int64_t> bytes = {static_cast<std::int64_t>(sharded.state_bytes())};
    EXPECT_LT(bytes[0], static_cast<std::int64_t>(whole.state_bytes()) / 2);
    group.all_reduce(bytes);
    EXPECT_EQ(bytes[0], static_cast<std::int64_t>(whole.state_bytes()));
  });
}

// Slices cover every element once, and lie where the parameters and the gradients do.
TEST(Zero1, SlicesAreACutOfTheParameters) {
  on_threads(thread_groups(3), [](const Group& group) {
    OddNet net;
    Zero1 zero1(net, group, small());
    const std::vector<NamedTensor> parameters = zero1.parameters();
    const std::span<const Slice> slices = zero1.slices();
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
TEST(Zero1, TellsHowItsUpdatesWereShared) {
  on_threads(thread_groups(2), [](const Group& group) {
    SmallNet net, other;
    Zero1 zero1(net, group, small());
    DataParallel ddp(other, group, small());
    SGD optimizer(zero1), whole(ddp);
    for (int step = 0; step < 2; ++step) {
      net.forward(small_batch(group.rank(), step)).square().mean().backward();
      zero1.synchronize();
      EXPECT_TRUE(zero1.last_exchange().shared.empty());  // those of the step before are forgotten
      optimizer.step();
      const ExchangeLog& log = zero1.last_exchange();
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

TEST(Zero1, LeavesNoGradientThatIsNotTheMean) {
  on_threads(thread_groups(2), [](const Group& group) {
    SmallNet net;
    Zero1 zero1(net, group);
    net.forward(small_batch(group.rank(), 0)).square().mean().backward();
    for (const auto& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

// Optimizers that know nothing of slices would leave every parameter as it is, without a word.
TEST(Zero1, AnOptimizerThatFindsNoGradientIsNamed) {
  on_threads(thread_groups(2), [](const Group& group) {
    OddNet net;
    Zero1 zero1(net, group);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    const auto step = [&](int number) {
      lanes_of_a_step(group, 2, number, net, zero1);
      optimizer.step();
    };
    step(0);
    expect_error<UsageError>([&] { step(1); }, {"Zero1", "nothing is trained", "SGD, Adam, AdamW"});
  });
}

// An optimizer of ours that skips its steps, and somebody who only looks at the gradients.
TEST(Zero1, StepsThatAreSkippedAreNoMistake) {
  on_threads(thread_groups(2), [](const Group& group) {
    OddNet skipped, looked_at;
    Zero1 zero1(skipped, group), other(looked_at, group);
    const SGD optimizer(zero1);
    for (int step = 0; step < 3; ++step) {
      lanes_of_a_step(group, 2, step, skipped, zero1);
      lanes_of_a_step(group, 2, step, looked_at, other);
      EXPECT_GT(clip_grad_norm_(other, 1e9), 0);
    }
  });
}

TEST(Zero1, AParameterThatWasMovedAwayIsNamed) {
  SmallNet net;
  Zero1 zero1(net, thread_groups(1)[0]);
  SGD optimizer(zero1);
  net.second->weight.set_data(net.second->weight.detach().clone());
  net.forward(small_batch(0, 0)).square().mean().backward();
  expect_error<UsageError>([&] { optimizer.step(); }, {"'second.weight'", "other memory", "copy_"});
}

// Before anything is updated: the state and the moved parameter are as they were.
TEST(Zero1, NothingIsUpdatedWhenAParameterWasMovedAway) {
  SmallNet net;
  Zero1 zero1(net, thread_groups(1)[0]);
  AdamW optimizer(zero1);
  net.forward(small_batch(0, 0)).square().mean().backward();
  net.second->weight.set_data(net.second->weight.detach().clone());
  const Tensors before = copies(net);
  expect_error<UsageError>([&] { optimizer.step(); }, {"'second.weight'", "other memory"});
  EXPECT_TRUE(equal(copies(net), before));
  expect_error<UsageError>([&] { clip_grad_norm_(zero1, 1.0); }, {"'second.weight'", "other memory"});
}

TEST(Zero1, ASecondExchangeInOneStepIsRefused) {
  on_threads(thread_groups(2), [](const Group& group) {
    SmallNet net;
    Zero1 zero1(net, group);
    SGD optimizer(zero1);
    const auto backward = [&](int step) {
      net.forward(small_batch(group.rank(), step)).square().mean().backward();
    };
    backward(0);
    expect_error<UsageError>([&] { backward(1); }, {"exchanged", "no_sync()", "zero_grad()"});
    zero1.reset();
    backward(2);
    optimizer.zero_grad();  // given up
    backward(3);
    optimizer.step();
    backward(4);  // step() has forgotten those before
    optimizer.step();
  });
}

// Views on one memory are two parameters to libtorch: each would get memory of its own.
TEST(Zero1, WeightsTiedByMemoryAreRefused) {
  struct Tied : SmallNet {
    Tied() { register_parameter("again", torch::zeros({3, 8})).set_data(second->weight.detach()); }
  } tied;
  const Group alone = thread_groups(1)[0];
  expect_error<UsageError>([&] { Zero1(tied, alone); }, {"'again'", "'second.weight'", "same memory"});
  const DataParallel fine(tied, alone);
  struct Watched : SmallNet {
    Watched() { register_buffer("seen", second->bias.detach()); }
  } watched;
  expect_error<UsageError>([&] { Zero1(watched, alone); }, {"'second.bias'", "'seen'", "same memory"});
}

TEST(Zero1, OnlyWhatWasUpdatedHasANewVersion) {
  OddNet net;
  Zero1 zero1(net, thread_groups(1)[0]);
  SGD optimizer(zero1);
  const auto never = net.never._version();
  const auto second = net.second->weight._version();
  net.loss(0, 0).backward();
  optimizer.step();
  EXPECT_EQ(net.never._version(), never);
  EXPECT_GT(net.second->weight._version(), second);
}

// Slices that somebody kept can be read when the strategy is gone.
TEST(Zero1, KeptGradientsHoldTheirMemory) {
  SmallNet net;
  torch::Tensor kept;
  torch::Tensor then;
  {
    Zero1 zero1(net, thread_groups(1)[0]);
    net.forward(small_batch(0, 0)).square().mean().backward();
    kept = zero1.slices()[0].gradient;
    then = kept.clone();
  }
  EXPECT_TRUE(torch::equal(kept, then));
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
  for (const std::string name : {"ddp", "zero1"}) {
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
  EXPECT_NE(dynamic_cast<Zero1*>(make_strategy("zero1", net, alone).get()), nullptr);
  expect_error<UsageError>([&] { make_strategy("dpp", net, alone); }, {"'dpp'", "ddp, zero1"});
  expect_error<UsageError>([&] { leaves_of("dpp"); }, {"'dpp'", "ddp, zero1"});
  for (const char* const name : kStrategyNames)
    EXPECT_EQ(leaves_of(name), make_strategy(name, net, alone)->exchange().leaves) << name;
  expect_error<UsageError>(
      [&] { DataParallel(net, alone, {.exchange = [](auto) { return reduce_scatter_exchange(); }}); },
      {"reduce-scatter", "a part of the gradients"});
}

}  // namespace
}  // namespace lockstep
