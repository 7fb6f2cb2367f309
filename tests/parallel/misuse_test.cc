// Models that are not used as they were wrapped: backward elsewhere than in its lane, parameters that came
// later, gradients that came from elsewhere. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <array>
#include <functional>
#include <stdexcept>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/small_net.h"
#include "parallel/told.h"

namespace lockstep {
namespace {

using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::expect_in_all;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::told;

// One step of four lanes.
void for_each_lane(const Group& group, const std::function<void(Lane&)>& body) {
  for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 4}))
    for (auto& lane : step) body(lane);
}

TEST(Misuse, BackwardInALoopOverLanesWithoutALaneIsAnError) {
  for (const int n : {1, 2})
    expect_in_all(
        told<UsageError>(n,
                         [](const Group& group) {
                           auto net = std::make_shared<SmallNet>();
                           DataParallel ddp(net, group);
                           for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2}))
                             for (auto& lane : step) net->forward(lane.data).mean().backward();
                         }),
        {"in no lane", "ddp.lane(lane)"});
}

// A lane's part in the buffers is taken where its scope ends: what comes later would leave them as they
// began.
TEST(Misuse, BackwardBehindTheScopeOfItsLaneIsAnError) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     SGD optimizer(ddp, {.lr = 0.1});
                                     const auto loss_of = [&](const Lane& lane) {
                                       auto scope = ddp.lane(lane);
                                       return net->forward(lane.data).square().mean();
                                     };
                                     auto data = std::make_shared<SmallExamples>(16);
                                     for (auto& step : loader(data, group, {.lanes = 4, .lane_batch = 4})) {
                                       for (auto& lane : step) loss_of(lane).backward();
                                       optimizer.step();
                                     }
                                   }),
                  {"behind the scope of its lane", "ddp.lane(lane)"});
}

// The losses of the lanes added up: no lane has brought a gradient, so this is a step of nobody's weight.
TEST(Misuse, BackwardBehindTheLoopOverItsLanesIsAnError) {
  for (const int n : {1, 2})
    for (const bool torch_optimizer : {false, true})
      expect_in_all(told<UsageError>(n,
                                     [&](const Group& group) {
                                       auto net = std::make_shared<torch::nn::LinearImpl>(6, 3);
                                       DataParallel ddp(torch::nn::Linear(net), group);
                                       SGD ours(ddp, {.lr = 0.1});
                                       torch::optim::SGD theirs(net->parameters(), 0.1);
                                       auto data = std::make_shared<SmallExamples>(16);
                                       for (auto& step : loader(data, group, {.lanes = 4, .lane_batch = 4})) {
                                         torch::Tensor sum = torch::zeros({});
                                         for (auto& lane : step) {
                                           auto scope = ddp.lane(lane);
                                           sum = sum + net->forward(lane.data).square().mean();
                                         }
                                         sum.backward();
                                         torch_optimizer ? (void)theirs.step() : ours.step();
                                       }
                                     }),
                    {"behind the loop over its lanes", "inside of its scope"});
}

// Where one rank has no lane in the step, too.
TEST(Misuse, BackwardBehindTheLoopIsAnErrorOnAllRanks) {
  expect_in_all(told<UsageError>(2,
                                 [](const Group& group) {
                                   auto net = std::make_shared<torch::nn::LinearImpl>(6, 3);
                                   DataParallel ddp(torch::nn::Linear(net), group);
                                   auto data = std::make_shared<SmallExamples>(1);
                                   for (auto& step : loader(
                                            data, group,
                                            {.lanes = 4, .lane_batch = 1, .last_step = LastStep::short_})) {
                                     for (auto& lane : step) {
                                       auto scope = ddp.lane(lane);
                                       (void)net->forward(lane.data);
                                     }
                                     net->forward(small_batch(0, 0)).square().mean().backward();
                                   }
                                 }),
                {"behind the loop over its lanes"});
}

// Where the loop was to train nothing, what comes behind it is a step of its own.
TEST(Misuse, ALoopOverLanesThatTrainsNothingMayBeEnded) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    for_each_lane(group, [&](Lane& lane) {
      auto scope = ddp.lane(lane);
      (void)net->forward(lane.data);
    });
    ddp.end_step();
    EXPECT_NO_THROW(net->forward(small_batch(group.rank(), 0)).square().mean().backward());
  });
}

// Of a lane that reset() has ended nobody knows the weight and the place.
TEST(Misuse, BackwardInALaneThatResetHasEndedIsAnError) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     for_each_lane(group, [&](Lane& lane) {
                                       auto scope = ddp.lane(lane);
                                       if (lane.first) ddp.reset();
                                       net->forward(lane.data).square().mean().backward();
                                     });
                                   }),
                  {"in a lane that reset() has ended"});
}

// Its place in the step's sum has been used.
TEST(Misuse, BackwardInALaneWhoseStepIsOverIsAnError) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     SGD optimizer(ddp, {.lr = 0.1});
                                     auto scope = ddp.lane({.index = group.rank(), .total_weight = 2});
                                     net->forward(small_batch(group.rank(), 0)).square().mean().backward();
                                     optimizer.step();
                                     net->forward(small_batch(group.rank(), 1)).square().mean().backward();
                                   }),
                  {"in the scope of a lane whose step is over"});
}

// On as many workers as lanes it would be right, on fewer another run.
TEST(Misuse, AStepThatIsTakenBetweenItsLanesIsAnError) {
  const auto between = std::to_array<std::function<void(DataParallel&, SGD&)>>(
      {[](DataParallel&, SGD& optimizer) { optimizer.step(); },
       [](DataParallel& ddp, SGD&) { (void)clip_grad_norm_(ddp, 1.0); },
       [](DataParallel& ddp, SGD&) { ddp.synchronize(); }});
  for (const int n : {1, 2})
    for (const auto& act : between)
      for (const bool inside : {true, false})
        expect_in_all(told<UsageError>(n,
                                       [&](const Group& group) {
                                         auto net = std::make_shared<SmallNet>();
                                         DataParallel ddp(net, group);
                                         SGD optimizer(ddp, {.lr = 0.1});
                                         for_each_lane(group, [&](Lane& lane) {
                                           {
                                             auto scope = ddp.lane(lane);
                                             net->forward(lane.data).square().mean().backward();
                                             if (inside) act(ddp, optimizer);
                                           }
                                           if (!inside) act(ddp, optimizer);
                                         });
                                       }),
                      {"exchanged before its last lane", "behind the loop over the lanes"});
}

// Where each worker has one lane its last is its first, and a loop may be gone through twice.
TEST(Misuse, AStepBehindALoopThatIsGoneThroughAgainIsNoMistake) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 4}))
      for (int pass = 0; pass < 2; ++pass) {
        for (auto& lane : step) {
          if (pass == 1 && lane.first) continue;
          auto scope = ddp.lane(lane);
          net->forward(lane.data).square().mean().backward();
        }
        EXPECT_NO_THROW(optimizer.step());
      }
  });
}

// The loop's end is heard by strategies of the loader's group.
TEST(Misuse, ALaneOfALoaderOfAnotherGroupIsAnError) {
  expect_in_all(told<UsageError>(2,
                                 [](const Group& group) {
                                   auto net = std::make_shared<SmallNet>();
                                   DataParallel ddp(net, group.split(0));
                                   for_each_lane(group, [&](Lane& lane) { auto scope = ddp.lane(lane); });
                                 }),
                {"of a loader of another group than the DataParallel"});
}

// No memory for one batch, which the program catches, on every worker, to go on with the next.
TEST(Misuse, ALoopThatGoesOnBehindABackwardThatThrewIsAnError) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     SGD optimizer(ddp, {.lr = 0.1});
                                     auto data = std::make_shared<SmallExamples>(16);
                                     for (auto& step : loader(data, group, {.lanes = 4, .lane_batch = 2})) {
                                       for (auto& lane : step) {
                                         auto scope = ddp.lane(lane);
                                         auto hidden = net->norm(net->first(lane.data));
                                         hidden.register_hook([&](const torch::Tensor& gradient) {
                                           if (lane.last) throw std::runtime_error("out of memory");
                                           return gradient;
                                         });
                                         try {
                                           net->second(torch::relu(hidden)).square().mean().backward();
                                         } catch (const std::runtime_error&) {
                                           continue;
                                         }
                                       }
                                       optimizer.step();
                                     }
                                   }),
                  n == 1 ? std::vector<std::string>{"ended by an exception",
                                                    "reset() on every worker, then this step again"}
                         : std::vector<std::string>{"ended by an exception", "for which the others wait",
                                                    "a new start from a checkpoint", "reset() on all"});
}

// Though it meets no parameter that the first had come to: torch's optimizer would train with what is not
// averaged.
TEST(Misuse, ABackwardOfOtherParametersBehindOneThatThrewIsAnErrorToo) {
  struct TwoHeads : torch::nn::Module {
    torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(6, 8));
    torch::nn::Linear a = register_module("a", torch::nn::Linear(8, 3));
    torch::nn::Linear b = register_module("b", torch::nn::Linear(8, 3));
  };
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<TwoHeads>();
    DataParallel ddp(net, group);
    auto hidden = net->trunk(small_batch(group.rank(), 0));
    hidden.register_hook(
        [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("no memory"); });
    EXPECT_THROW(net->a(hidden).square().mean().backward(), std::runtime_error);
    const auto other = [&] { net->b(net->trunk(small_batch(group.rank(), 1))).square().mean().backward(); };
    EXPECT_THROW(other(), UsageError);
    EXPECT_EQ(ddp.reducer().exchanges(), 0);
    ddp.reset();
    EXPECT_NO_THROW(other());
    EXPECT_EQ(ddp.reducer().exchanges(), 1);
  });
}

// Not that some backward was ended.
TEST(Misuse, WhatAnExchangeFailedWithInsideBackwardIsToldAgainBehindIt) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group,
                     {.hook = [](const Bucket&) -> Work { throw std::runtime_error("no link"); }});
    SGD optimizer(ddp, {.lr = 0.1});
    const auto told = [](const auto& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string("nothing");
    };
    const std::string first =
        told([&] { net->forward(small_batch(group.rank(), 0)).square().mean().backward(); });
    EXPECT_NE(first.find("no link"), std::string::npos) << first;
    EXPECT_NE(told([&] { optimizer.step(); }).find("no link"), std::string::npos);
  });
}

// Whose caller may catch it: no bucket leaves a second time.
TEST(Misuse, WhatAnExchangeFailedWithInsideAnInnerBackwardEndsTheOuterOneToo) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    int asked = 0;
    DataParallel ddp(net, group, {.hook = [&](const Bucket&) -> Work {
                       if (++asked == 1) throw std::runtime_error("no link");
                       return Work();
                     }});
    bool caught = false;
    // The outer one brings the gradients of `second`, then the inner one all others, and with them the
    // bucket.
    const auto inner = net->norm(net->first(small_batch(group.rank(), 0))).square().mean();
    auto middle = torch::ones({4, 8}).requires_grad_() * 2;
    middle.register_hook([&](const torch::Tensor& gradient) {
      try {
        inner.backward();
      } catch (const std::exception& error) {
        caught = std::string(error.what()).find("no link") != std::string::npos;
      }
      return gradient;
    });
    try {
      net->second(middle).square().mean().backward();
      ADD_FAILURE() << "the outer backward went on";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("no link"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(caught);
    EXPECT_EQ(asked, 1);
    EXPECT_EQ(ddp.reducer().exchanges(), 0);
  });
}

// libtorch gives it another accumulator of gradients, there and back.
TEST(Misuse, AModelThatIsMovedAfterWrappingIsNamed) {
  for (const bool idle : {false, true})
    for (const int n : {1, 2})
      expect_in_all(
          told<UsageError>(n,
                           [&](const Group& group) {
                             auto net = std::make_shared<SmallNet>();
                             DataParallel ddp(net, group);
                             SGD optimizer(ddp, {.lr = 0.1});
                             net->to(torch::kFloat64);
                             net->to(torch::kFloat32);
                             if (!idle) net->forward(small_batch(group.rank(), 0)).square().mean().backward();
                             optimizer.step();
                           }),
          {"was given another type or device since the model was wrapped"});
}

TEST(Misuse, AParameterUnfrozenAfterWrappingIsNamed) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     net->first->weight.requires_grad_(false);
                                     DataParallel ddp(net, group);
                                     net->forward(small_batch(0, 0)).mean().backward();
                                     net->first->weight.requires_grad_(true);
                                     net->forward(small_batch(0, 0)).mean().backward();
                                   }),
                  {"'first.weight'", "frozen"});
}

TEST(Misuse, AParameterThatCameAfterWrappingIsNamed) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     const torch::Tensor late =
                                         net->register_parameter("late", torch::ones({1}));
                                     (net->forward(small_batch(0, 0)) * late).mean().backward();
                                   }),
                  {"'late' has a gradient, which nobody exchanges", "make a new DataParallel"});
}

// Soon, whatever the options, and under the name of one that was there.
TEST(Misuse, AParameterThatWasReplacedIsNamed) {
  for (const int n : {1, 2})
    for (const int at : {2, 40})
      expect_in_all(told<UsageError>(n,
                                     [&](const Group& group) {
                                       auto net = std::make_shared<SmallNet>();
                                       DataParallel ddp(net, group, {.check_replicas_every = 0});
                                       for (int step = 0; step < at + 16; ++step) {
                                         if (step == at)
                                           net->second =
                                               net->replace_module("second", torch::nn::Linear(8, 3));
                                         net->forward(small_batch(0, step)).mean().backward();
                                       }
                                     }),
                    {"'second.weight' has a gradient, which nobody exchanges"});
}

// A copy that the model carries along and that is in no graph.
TEST(Misuse, AParameterThatNobodyTrainsMayComeAtAnyTime) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    net->register_module("average", std::make_shared<SmallNet>());
    EXPECT_NO_THROW(net->forward(small_batch(group.rank(), 0)).square().mean().backward());
    ddp.synchronize();
    EXPECT_NO_THROW(ddp.rebind(group.split(0)));
    EXPECT_EQ(ddp.parameters().size(), SmallNet().parameters().size());
    EXPECT_NO_THROW(net->forward(small_batch(group.rank(), 1)).square().mean().backward());
  });
}

// A part of the model that is wrapped by itself later, by workers that may be others.
TEST(Misuse, AParameterThatAnotherStrategyExchangesMayComeAtAnyTime) {
  for (const bool same : {true, false})
    on_threads(thread_groups(2), [same](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, group);
      auto head = net->register_module("head", std::make_shared<torch::nn::LinearImpl>(3, 1));
      DataParallel heads(head, same ? group : group.split(0));
      EXPECT_NO_THROW(head->forward(net->forward(small_batch(group.rank(), 0))).square().mean().backward());
      ddp.synchronize();
      heads.synchronize();
    });
}

// One that was frozen, too.
TEST(Misuse, AParameterThatAnotherStrategyExchangesMayBeUnfrozen) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    for (torch::Tensor& p : net->first->parameters()) p.requires_grad_(false);
    DataParallel ddp(net, group);
    for (torch::Tensor& p : net->first->parameters()) p.requires_grad_(true);
    DataParallel trunk(net->first, group);
    EXPECT_NO_THROW(net->forward(small_batch(group.rank(), 0)).square().mean().backward());
    ddp.synchronize();
    trunk.synchronize();
  });
}

// step() would take this rank for one without gradients, and they would be gone.
TEST(Misuse, GradientsThatNoBackwardBroughtAreNamed) {
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3"})
    for (const int n : {1, 2})
      expect_in_all(told<UsageError>(n,
                                     [&](const Group& group) {
                                       auto net = std::make_shared<SmallNet>();
                                       const auto model = make_strategy(strategy, net, group, {});
                                       SGD optimizer(*model, {.lr = 0.1});
                                       net->forward(small_batch(0, 0)).square().mean().backward();
                                       optimizer.step();
                                       for (const torch::Tensor& p : net->parameters())
                                         p.mutable_grad() = torch::ones_like(p);
                                       optimizer.step();
                                     }),
                    {"'first.weight' has a gradient that no backward() brought"});
}

// What was there when the model was wrapped, and what the step before has left, are no mistakes of this step.
TEST(Misuse, GradientsThatAreLeftOverAreNotTakenForThisSteps) {
  on_threads(thread_groups(2), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    net->forward(small_batch(0, 0)).square().mean().backward();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    const auto before = copies(*net);
    optimizer.step();  // nobody has gradients
    EXPECT_TRUE(equal(copies(*net), before));
    net->forward(small_batch(0, 0)).square().mean().backward();
    optimizer.step();
    optimizer.step();
    ddp.rebind(group.split(0));
    optimizer.step();
  });
  // One that clips out of place has put the last step's there itself, and may have put zeros in their place.
  for (const bool zeroed : {false, true})
    on_threads(thread_groups(2), [zeroed](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, group);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        if (zeroed) net->zero_grad(/*set_to_none=*/false);
        if (group.rank() == 0 || step != 1) net->forward(small_batch(0, step)).square().mean().backward();
        ddp.synchronize();
        for (const torch::Tensor& p : net->parameters()) p.mutable_grad() = p.grad().clamp(-1, 1);
        optimizer.step();
        ddp.end_step();
      }
    });
}

}  // namespace
}  // namespace lockstep
