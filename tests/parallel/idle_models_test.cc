// What becomes of the other model of a loop over lanes where one fails. Threads as ranks.
#include <gtest/gtest.h>

#include <new>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/idle_workers.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::borrowed;
using lockstep::testing::expect_alike;
using lockstep::testing::on_workers;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;

// A worker leaves a loop whose exchange it knows to be torn, and gives up what was: the other model had no
// part.
TEST(Idle, ALoopThatIsLeftEarlyWithOneModelsErrorLeavesTheOthersAlone) {
  const auto results = on_workers(2, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    DataParallel beside(std::make_shared<SmallNet>(), group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 2})) {
      bool threw = false;
      const auto train = [&] {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto hidden = net.norm(net.first(lane.data));
          if (group.rank() == 0 && step.number == 0)
            hidden.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::bad_alloc(); });
          try {
            net.second(hidden).square().mean().backward();
          } catch (const std::bad_alloc&) {
            threw = true;
            break;
          }
        }
      };
      EXPECT_NO_THROW(train());
      if (threw) ddp.reset();
      optimizer.step();
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
  });
  expect_alike(results);
}

// What all were told of one model stops the program's steps of the others too, until it is given up.
TEST(Idle, AFailureThatAllAreToldOfStopsTheOtherModelsStepWhereALoopIsLeftEarlyToo) {
  const auto results = on_workers(2, [](const Group& group, SmallNet& net) {
    auto other = std::make_shared<SmallNet>();
    DataParallel ddp(borrowed(net), group);
    DataParallel ddp_other(other, group, {.find_unused_parameters = false});
    SGD first(ddp, {.lr = 0.1});
    SGD second(ddp_other, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 2})) {
      const bool fails = step.number == 0;
      const auto train = [&] {
        for (auto& lane : step) {
          if (fails && group.rank() == 0 && lane.last) break;
          auto scope = ddp.lane(lane);
          auto scope_other = ddp_other.lane(lane);
          net.forward(lane.data).square().mean().backward();
          auto hidden = other->norm(other->first(lane.data));
          (fails ? hidden : other->second(hidden)).square().mean().backward();
        }
        first.step();
        second.step();
      };
      if (fails) {
        EXPECT_THROW(train(), UsageError);  // 'second' has no gradient
        ddp.reset();
        ddp_other.reset();
      } else {
        EXPECT_NO_THROW(train());
      }
    }
    EXPECT_EQ(ddp_other.reducer().exchanges(), 1);
  });
  expect_alike(results);
}

// Also of one that is gone by then: the others jumped over the steps behind it.
TEST(Idle, AnErrorOfAStrategyThatIsGoneIsStillToldWhereALoopWasLeftEarly) {
  (void)on_workers(2, [](const Group& group, SmallNet& net) {
    auto other = std::make_shared<SmallNet>();
    DataParallel ddp(borrowed(net), group);
    SGD first(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(8), group, {.lanes = 4, .lane_batch = 2})) {
      const auto train = [&] {
        {
          DataParallel gone(other, group, {.find_unused_parameters = false});
          for (auto& lane : step) {
            if (group.rank() == 0 && lane.last) break;
            auto scope = ddp.lane(lane);
            auto scope_gone = gone.lane(lane);
            net.forward(lane.data).square().mean().backward();
            other->norm(other->first(lane.data)).square().mean().backward();
          }
        }
        first.step();
      };
      EXPECT_THROW(train(), UsageError);  // 'second' has no gradient
      break;
    }
  });
}

// In step 1 rank 2 has no lane, and rank 1 leaves its own before it begins. All hear of the failure there,
// and give it up by reset(), or wrap the model anew.
void hear_of_a_failure_where_a_loop_is_left_early(bool anew) {
  const auto results = on_workers(3, [=](const Group& group, SmallNet& net) {
    std::optional<DataParallel> ddp;
    std::optional<SGD> optimizer;
    const auto wrap = [&] {
      optimizer.reset();
      ddp.reset();
      ddp.emplace(borrowed(net), group, DataParallelOptions{.find_unused_parameters = false});
      optimizer.emplace(*ddp, SGDOptions{.lr = 0.1});
    };
    wrap();
    DataParallel beside(std::make_shared<SmallNet>(), group);
    for (auto& step : loader(std::make_shared<SmallExamples>(18), group,
                             {.lanes = 6, .lane_batch = 2, .last_step = LastStep::short_, .epochs = 2})) {
      const bool fails = step.number == 1;
      const auto train = [&] {
        for (auto& lane : step) {
          if (fails && group.rank() == 1) break;
          auto scope = ddp->lane(lane);
          auto hidden = net.norm(net.first(lane.data));
          (fails ? hidden : net.second(hidden)).square().mean().backward();
        }
        optimizer->step();
      };
      if (fails) {
        EXPECT_THROW(train(), UsageError);  // 'second' has no gradient
        anew ? wrap() : ddp->reset();
      } else {
        EXPECT_NO_THROW(train());
      }
    }
    EXPECT_EQ(ddp->reducer().exchanges(), anew ? 2 : 3);
  });
  expect_alike(results);
}

TEST(Idle, AnErrorThatIsHeardWhereALoopIsLeftEarlyIsOverForOtherModelsWithItsReset) {
  hear_of_a_failure_where_a_loop_is_left_early(false);
}

TEST(Idle, AnErrorThatIsHeardWhereALoopIsLeftEarlyIsOverForOtherModelsWithItsStrategy) {
  hear_of_a_failure_where_a_loop_is_left_early(true);
}

// In the order in which the program asks, as where the loop has come to its end.
TEST(Idle, TwoModelsAreExchangedInTheProgramsOrderBehindALoopThatAnExceptionLeft) {
  on_workers(2, [](const Group& group, SmallNet& net) {
    auto other = std::make_shared<SmallNet>();
    DataParallel ddp(borrowed(net), group);
    DataParallel ddp_other(other, group);
    SGD optimizer(ddp, {.lr = 0.1});
    SGD optimizer_other(ddp_other, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 2})) {
      try {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto scope_other = ddp_other.lane(lane);
          if (group.rank() == 0 && step.number == 0 && lane.last) throw std::bad_alloc();
          other->forward(lane.data).square().mean().backward();
          net.forward(lane.data).square().mean().backward();
        }
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(step.number, 0);
      }
      optimizer_other.step();
      optimizer.step();
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
    EXPECT_EQ(ddp_other.reducer().exchanges(), 2);
  });
}

}  // namespace
}  // namespace lockstep
