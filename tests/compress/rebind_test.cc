// Workers with pasts of their own become one group: whose memory, steps and choice count from then on.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "compress/chooser.h"
#include "lockstep/compress/compress.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;
using lockstep::testing::tcp_groups;

// A run without lanes.
struct Loop {
  Loop(const Group& group, const std::string& method)
      : ddp(net, group, {.exchange = compressed({.method = method})}), optimizer(ddp, {.lr = 0.05}) {}

  void steps(int count, int rank) {
    for (int step = 0; step < count; ++step) {
      net.forward(small_batch(rank, step)).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  Exchange::State state() const { return ddp.exchange().state(); }

  SmallNet net;
  DataParallel ddp;
  SGD optimizer;
};

std::int64_t steps_in(const Exchange::State& state) { return state.at("steps").item<std::int64_t>(); }

// Random elements, the end of a warm-up and a share that falls all hang on the step.
TEST(CompressedRebind, WhoJoinsTakesTheStepsOfTheOthers) {
  for (const char* method : {"randk:0.2:min=0", "topk:0.2:min=0:warmup=3", "dgc:0.1:min=0:rampup=4"})
    on_threads(tcp_groups(3, net::Security::plaintext, std::chrono::seconds(10)), [&](const Group& world) {
      const Group first = world.split(world.rank() < 2 ? 0 : 1);
      Loop loop(first, method);
      if (world.rank() < 2) loop.steps(3, world.rank());
      loop.ddp.rebind(world);
      EXPECT_EQ(steps_in(loop.state()), 3) << method;
      loop.steps(1, world.rank());
      loop.ddp.check_replicas();
      EXPECT_EQ(steps_in(loop.state()), 4) << method;
    });
}

// Rank 0 has not begun: it takes what the others remember, and does not send its zeros in place of that.
TEST(CompressedRebind, WhoHasNotBegunLeavesWhatOthersRemember) {
  on_threads(thread_groups(3), [](const Group& world) {
    const Group first = world.split(world.rank() == 0 ? 0 : 1);
    Loop loop(first, "onebit:min=0");
    if (world.rank() > 0) loop.steps(3, world.rank());
    const Exchange::State before = loop.state();
    loop.ddp.rebind(world);
    const Exchange::State after = loop.state();
    EXPECT_EQ(steps_in(after), 3);
    if (world.rank() == 0) return;
    for (const char* key : {"owed/0/first.weight", "owed/1/first.weight", "server/first.weight"}) {
      EXPECT_GT(before.at(key).abs().max().item<float>(), 0) << key;
      EXPECT_TRUE(torch::equal(after.at(key), before.at(key))) << key;
    }
  });
}

// All go on with rank 0's parameters: errors of another run, however long it was, are none of theirs.
TEST(CompressedRebind, WhatAnotherRunRemembersIsLeftOut) {
  on_threads(thread_groups(3), [](const Group& world) {
    const Group first = world.split(world.rank() == 0 ? 0 : 1);
    Loop loop(first, "onebit:min=0");
    loop.steps(world.rank() == 0 ? 2 : 3, world.rank());
    const Exchange::State before = loop.state();
    loop.ddp.rebind(world);
    const Exchange::State after = loop.state();
    EXPECT_EQ(steps_in(after), 2);
    EXPECT_EQ(after.at("owed/1/first.weight").abs().max().item<float>(), 0);
    if (world.rank() > 0) return;
    EXPECT_TRUE(torch::equal(after.at("owed/0/first.weight"), before.at("owed/0/first.weight")));
    EXPECT_TRUE(torch::equal(after.at("server/first.weight"), before.at("server/first.weight")));
  });
}

// Five workers go on with a run from before there were two forms, which gathers with any number of subtrees;
// who joins, as the first or as the last, would scatter.
TEST(CompressedRebind, WhoJoinsTakesTheFormOfTheOthers) {
  for (const int joins : {0, 5})
    on_threads(tcp_groups(6, net::Security::plaintext, std::chrono::seconds(10)), [&](const Group& world) {
      Loop loop(world.split(world.rank() == joins ? 0 : 1), "int8:min=0");
      if (world.rank() != joins) {
        Exchange::State state = loop.state();
        state.erase("most_gathered");
        loop.ddp.exchange().load(state);
        loop.steps(2, world.rank());
      }
      loop.ddp.rebind(world);
      loop.steps(2, world.rank());
      loop.ddp.check_replicas();
      EXPECT_GT(loop.state().at("most_gathered").item<std::int64_t>(), 8);
    });
}

struct OneLayer : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(64, 64));
};

// Two workers have chosen, or not yet; who joins was alone, and has chosen to send all of nothing.
TEST(CompressedRebind, WhoJoinsTakesTheChoiceOfTheOthers) {
  for (const bool chosen : {true, false})
    on_threads(tcp_groups(3, net::Security::plaintext, std::chrono::seconds(10)), [&](const Group& world) {
      const auto net = std::make_shared<OneLayer>();
      DataParallel ddp(net, world.split(world.rank() < 2 ? 0 : 1),
                       {.exchange = compressed({.method = "auto", .max_error = 10})});
      const auto step = [&](int number) {
        const torch::Tensor x = torch::sin(torch::arange(4 * 64, torch::kFloat32) *
                                           (0.3f + static_cast<float>(world.rank() + number)));
        net->layer(x.view({4, 64})).square().mean().backward();
        net->zero_grad();
        ddp.end_step();
      };
      if (world.rank() == 2) {
        EXPECT_EQ(ddp.exchange().figures().about, "auto: none; one worker sends nothing");
      } else {
        if (chosen) {
          Exchange::State state = ddp.exchange().state();
          state["auto"] = torch::full({}, 1, torch::kInt64);
          ddp.exchange().load(state);
        }
        step(0);
      }
      ddp.rebind(world);
      EXPECT_EQ(ddp.exchange().figures().about.substr(0, 12), chosen ? "auto: int8; " : "auto, not de");
      for (int number = 1; number < compress::Chooser::kProbes + 4; ++number) step(number);
      const torch::Tensor own = ddp.exchange().state().at("auto");  // of the weight and the bias
      ASSERT_EQ(own.numel(), 2);
      for (std::int64_t p = 0; p < own.numel(); ++p)
        for (const std::int64_t choice : world.all_gather(own[p].item<std::int64_t>())) {
          EXPECT_EQ(choice, own[p].item<std::int64_t>());
          EXPECT_NE(choice, compress::Chooser::kUndecided);
        }
    });
}

}  // namespace
}  // namespace lockstep
