// Lanes that are trained in no loop over them: kept for later, or made by hand. Threads as ranks.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::train_lane;

// Lanes are taken out of the loader one step ahead: behind the loop over step k's all train those of the step
// before, of which rank 1 has none in steps 1 and 3.
void train_a_step_behind(const std::function<bool(const Lane&)>& runs_backward, int exchanges) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [=](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    std::vector<Lane> ready;
    const auto train = [&] {
      for (Lane& lane : ready) {
        auto scope = ddp.lane(lane);
        const torch::Tensor loss = net->forward(lane.data).square().mean();
        if (runs_backward(lane)) loss.backward();
      }
      optimizer.step();
    };
    for (auto& step : loader(std::make_shared<SmallExamples>(34), group,
                             {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2})) {
      std::vector<Lane> next;
      for (auto& lane : step) next.push_back(lane);
      if (step.number > 0) {
        EXPECT_NO_THROW(train());
      }
      ready = std::move(next);
    }
    EXPECT_NO_THROW(train());
    EXPECT_EQ(ddp.reducer().exchanges(), exchanges);
  });
}

TEST(OutOfStep, LanesThatAreKeptForTheNextIterationAreThoseOfTheirStep) {
  train_a_step_behind([](const Lane&) { return true; }, 4);
}

// Also those whose backward is left out in their scope.
TEST(OutOfStep, LanesThatAreKeptAndRunNoBackwardAreThoseOfTheirStep) {
  train_a_step_behind([](const Lane& lane) { return lane.step != 1; }, 3);
}

// So are those that are trained inside of the next step's loop, of which rank 1 skips its own of step 0.
TEST(OutOfStep, LanesThatAreKeptForTheNextLoopAreThoseOfTheirStep) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    std::optional<Lane> ready;
    for (auto& step : loader(std::make_shared<SmallExamples>(24), group, {.lanes = 2, .lane_batch = 4}))
      EXPECT_NO_THROW({
        for (auto& lane : step) {
          if (ready && !(group.rank() == 1 && ready->step == 0)) {
            auto scope = ddp.lane(*ready);
            net->forward(ready->data).square().mean().backward();
          }
          ready = lane;
        }
        optimizer.step();
      });
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
  });
}

// Rank 3 has no lane in any step, and hears in step 1's loop that the others exchange those of step 0.
TEST(OutOfStep, LanesThatAreKeptForALoopInWhichAWorkerHasNoneAreThoseOfTheirStep) {
  on_threads(thread_groups(4, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    std::vector<Lane> ready;
    for (auto& step : loader(std::make_shared<SmallExamples>(24), group, {.lanes = 6, .lane_batch = 2})) {
      std::vector<Lane> next;
      EXPECT_NO_THROW({
        for (auto& lane : step) {
          for (Lane& kept : std::exchange(ready, {})) {
            auto scope = ddp.lane(kept);
            net->forward(kept.data).square().mean().backward();
          }
          next.push_back(lane);
        }
        optimizer.step();
      });
      EXPECT_EQ(next.size(), group.rank() < 3 ? 2U : 0U);
      ready = std::move(next);
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 1);
  });
}

// They have numbers of their own: what a worker without them knows of a loader's says nothing of them,
// whether it went through that one's lanes before or has none in that one's step.
TEST(OutOfStep, LanesMadeByHandAreNotComparedWithALoadersSteps) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      for (auto& evaluated : loader(std::make_shared<SmallExamples>(8), group, {.lanes = 2, .lane_batch = 4}))
        for (auto& lane : evaluated) net->forward(lane.data);
      if (group.rank() == 0) train_lane(ddp, *net, 0, step);
      EXPECT_NO_THROW(optimizer.step());
    }
    for (auto& step : loader(std::make_shared<SmallExamples>(34), group,
                             {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_})) {
      EXPECT_NO_THROW({
        for (auto& lane : step) {
          LaneInfo by_hand = lane;
          by_hand.step += 100;
          by_hand.draw = 0;
          by_hand.board = nullptr;
          auto scope = ddp.lane(by_hand);
          net->forward(lane.data).square().mean().backward();
        }
        optimizer.step();
      });
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 3 + 2);
  });
}

}  // namespace
}  // namespace lockstep
