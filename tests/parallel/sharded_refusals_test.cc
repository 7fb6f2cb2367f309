// What Sharded refuses at every stage, and who is told; names of strategies.
#include <torch/optim/sgd.h>

#include "comm/expect_error.h"
#include "comm/wire_ranks.h"
#include "lockstep/optim/clip.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategy_names.h"
#include "parallel/sharded_case.h"

namespace lockstep::testing {
namespace {

class ShardedRefusals : public ShardedAt {};
INSTANTIATE_TEST_SUITE_P(Stage, ShardedRefusals, every_stage(), stage_name);

TEST(DataParallelRefusals, OptionsOfShards) {
  SmallNet net;
  const Group group = thread_groups(1)[0];
  for (const DataParallelOptions& options : {DataParallelOptions{.parameters = ParameterAccess::gathered},
                                             {.gathered_mb = 1},
                                             {.shard_workers = 1},
                                             {.offload_params = {.folder = "/tmp"}}})
    expect_error<UsageError>([&] { DataParallel ddp(net, group, options); },
                             {"DataParallel", "`offload_params`", "zero3"});
}

TEST_P(ShardedRefusals, LeavesNoGradientThatIsNotTheMean) {
  on_threads(thread_groups(2), [this](const Group& group) {
    SmallNet net;
    Sharded sharded(net, group, GetParam());
    net.forward(small_batch(group.rank(), 0)).square().mean().backward();
    for (const auto& p : net.parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

// Optimizers that know nothing of slices would leave every parameter as it is, without a word.
TEST_P(ShardedRefusals, AnOptimizerThatFindsNoGradientIsNamed) {
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
TEST_P(ShardedRefusals, StepsThatAreSkippedAreNoMistake) {
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

TEST_P(ShardedRefusals, AParameterThatWasMovedAwayIsNamed) {
  SmallNet net;
  Sharded sharded(net, thread_groups(1)[0], GetParam());
  SGD optimizer(sharded);
  net.second->weight.set_data(net.second->weight.detach().clone());
  net.forward(small_batch(0, 0)).square().mean().backward();
  expect_error<UsageError>([&] { optimizer.step(); }, {"'second.weight'", "other memory", "copy_"});
}

// Before anything is updated: the state and the moved parameter are as they were.
TEST_P(ShardedRefusals, NothingIsUpdatedWhenAParameterWasMovedAway) {
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

TEST_P(ShardedRefusals, ASecondExchangeInOneStepIsRefused) {
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
TEST_P(ShardedRefusals, WeightsTiedByMemoryAreRefused) {
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

TEST(ShardedRefusalsOnce, WorkersWithoutCommonMemoryAreRefused) {
  on_threads(tcp_groups(2, net::Security::plaintext), [](const Group& group) {
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

// An exchange that leaves everything leaves nothing in grad() where the bucket's memory goes on to the next.
TEST_P(ShardedRefusals, GradientsOfAnExchangeThatLeavesEverythingAreNotLost) {
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
}  // namespace lockstep::testing
