// Clipping, and unused parameters, in loops over lanes of which some workers have none. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "lockstep/data/loader.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/idle_workers.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::borrowed;
using lockstep::testing::equal;
using lockstep::testing::expect_alike;
using lockstep::testing::on_workers;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::Tensors;

// A loop over lanes that is left early ends there: gradients are there behind it, and no lane comes any more.
TEST(IdleClip, ClippingSeesTheMeansWhenALoopIsLeftEarly) {
  enum class Last { left, passed_over };
  const auto run = [](int n, Last last, bool torch_optimizer) {
    const auto results = on_workers(n, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group, {.check_replicas_every = 0});
      SGD ours(ddp, {.lr = 0.5});
      torch::optim::SGD theirs(net.parameters(), 0.5);
      for (auto& step :
           loader(std::make_shared<SmallExamples>(60), group,
                  {.lanes = 8, .lane_batch = 4, .shuffle = false, .last_step = LastStep::short_})) {
        for (auto& lane : step) {
          if (lane.index >= 6) {
            if (last == Last::left) break;
            continue;
          }
          auto scope = ddp.lane(lane);
          torch::mse_loss(net.forward(lane.data), lane.target).backward();
        }
        torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
        torch_optimizer ? (void)theirs.step() : ours.step();
      }
    });
    expect_alike(results);
    return results[0];
  };
  for (const bool torch_optimizer : {false, true})
    for (const int n : {1, 2, 3})
      EXPECT_TRUE(equal(run(n, Last::left, torch_optimizer), run(1, Last::passed_over, torch_optimizer)))
          << n << " workers";
}

enum class Clip { none, torchs, ours };

Tensors through_loader(int n, int lanes, std::int64_t examples, Clip clip, bool find_unused = true,
                       bool torch_optimizer = true) {
  const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.find_unused_parameters = find_unused});
    SGD ours(ddp, {.lr = 0.5, .momentum = 0.9});
    torch::optim::SGD theirs(net.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    auto data = std::make_shared<SmallExamples>(examples);
    for (auto& step : loader(data, group,
                             {.lanes = lanes,
                             .lane_batch = 4,
                             .shuffle = false,
                             .last_step = LastStep::short_,
                             .epochs = 2})) {
      for (auto& lane : step) {
        auto scope = ddp.lane(lane);
        torch::mse_loss(net.forward(lane.data), lane.target).backward();
      }
      if (clip == Clip::torchs) torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
      if (clip == Clip::ours) (void)clip_grad_norm_(ddp, 0.01);
      if (torch_optimizer)
        theirs.step();
      else
        ours.step();
    }
    ddp.check_replicas();
  });
  expect_alike(results);
  return results[0];
}

// 8 lanes of 4: two full steps and one of two examples, in which the second worker has no lane.
TEST(IdleClip, ClippingBetweenLanesAndStepSeesTheMeansOnEveryWorker) {
  for (const Clip clip : {Clip::torchs, Clip::ours})
    for (const bool torch_optimizer : {false, true}) {
      const Tensors alone = through_loader(1, 8, 66, clip, true, torch_optimizer);
      EXPECT_TRUE(equal(through_loader(2, 8, 66, clip, true, torch_optimizer), alone));
      EXPECT_FALSE(equal(through_loader(2, 8, 66, Clip::none, true, torch_optimizer), alone));
      // Six lanes: the last of four workers has none in any step.
      EXPECT_TRUE(equal(through_loader(4, 6, 50, clip, true, torch_optimizer),
                        through_loader(1, 6, 50, clip, true, torch_optimizer)));
    }
}

TEST(Idle, AnUnusedParameterIsOneThatABusyWorkerLacks) {
  EXPECT_TRUE(
      equal(through_loader(2, 8, 66, Clip::none, false), through_loader(1, 8, 66, Clip::none, false)));
}

enum class Beside { a_second_model, frozen_batch_norm };

// torch's clipping in a loop over lanes of which the second of two workers has none in the last step.
Tensors clipped(int n, Beside what) {
  const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    std::unique_ptr<DataParallel> second;
    if (what == Beside::a_second_model)
      second = std::make_unique<DataParallel>(std::make_shared<SmallNet>(), group);
    else
      net.eval();
    SGD optimizer(ddp, {.lr = 0.5});
    auto data = std::make_shared<SmallExamples>(34);
    for (auto& step : loader(
             data, group, {.lanes = 8, .lane_batch = 4, .shuffle = false, .last_step = LastStep::short_})) {
      for (auto& lane : step) {
        auto scope = ddp.lane(lane);
        torch::mse_loss(net.forward(lane.data), lane.target).backward();
      }
      torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
      optimizer.step();
    }
  });
  expect_alike(results);
  return results[0];
}

TEST(IdleClip, ClippingSeesTheMeansBesideASecondModelToo) {
  EXPECT_TRUE(equal(clipped(2, Beside::a_second_model), clipped(1, Beside::a_second_model)));
}

// Fine-tuning: statistics stay, weights are trained.
TEST(IdleClip, ClippingSeesTheMeansInAModelThatIsTrainedInEvalMode) {
  EXPECT_TRUE(equal(clipped(2, Beside::frozen_batch_norm), clipped(1, Beside::frozen_batch_norm)));
}

// if (isfinite(loss)) loss.backward(), and the loss of a worker's last lane was not.
TEST(IdleClip, ClippingSeesTheMeansWhenTheLastLaneWasSkipped) {
  const auto run = [](int n) {
    const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.5});
      auto data = std::make_shared<SmallExamples>(64);
      for (auto& step : loader(data, group, {.lanes = 8, .lane_batch = 4, .shuffle = false})) {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto loss = torch::mse_loss(net.forward(lane.data), lane.target);
          if (lane.index != 7) loss.backward();
        }
        torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
        optimizer.step();
      }
    });
    expect_alike(results);
    return results[0];
  };
  const Tensors alone = run(1);
  EXPECT_TRUE(equal(run(2), alone));
}

// A worker whose lanes were all passed over before their scopes has the means where somebody asks for them,
// which torch's clipping does not.
TEST(IdleClip, TorchsClippingComesBehindSynchronizeWhereAllLanesMayBePassedOver) {
  const auto run = [](int n, bool passed_over, bool torch_optimizer) {
    const auto results = on_workers(n, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD ours(ddp, {.lr = 0.5});
      torch::optim::SGD theirs(net.parameters(), 0.5);
      for (auto& step : loader(std::make_shared<SmallExamples>(64), group,
                               {.lanes = 4, .lane_batch = 4, .shuffle = false})) {
        for (auto& lane : step) {
          // In the second step the upper half, in the third all.
          const bool bad = (lane.step == 1 && lane.index >= 2) || lane.step == 2;
          if (bad && passed_over) continue;
          auto scope = ddp.lane(lane);
          auto loss = torch::mse_loss(net.forward(lane.data), lane.target);
          if (!bad) loss.backward();
        }
        ddp.synchronize();
        torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
        torch_optimizer ? (void)theirs.step() : ours.step();
        ddp.end_step();
      }
      ddp.check_replicas();
    });
    expect_alike(results);
    return results[0];
  };
  for (const bool torch_optimizer : {false, true}) {
    const Tensors alone = run(1, false, torch_optimizer);
    for (const int n : {1, 2, 4}) EXPECT_TRUE(equal(run(n, true, torch_optimizer), alone)) << n << " workers";
  }
}

}  // namespace
}  // namespace lockstep
