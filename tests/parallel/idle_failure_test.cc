// What becomes of a step that fails in loops over lanes of which some workers have none. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <new>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/sharded.h"
#include "parallel/idle_workers.h"
#include "parallel/small_net.h"
#include "parallel/told.h"

namespace lockstep {
namespace {

using lockstep::testing::borrowed;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::expect_alike;
using lockstep::testing::expect_in_all;
using lockstep::testing::loss_of;
using lockstep::testing::on_workers;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::Tensors;
using lockstep::testing::told;

// Of 34 examples, twice: steps 1 and 3 have one lane, and worker 1 of two has none in them.
Loader short_second_step(const Group& group) {
  return loader(std::make_shared<SmallExamples>(34), group,
                {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2});
}

// What goes wrong there is told to whoever asks for the gradients.
TEST(Idle, AnExchangeThatFailsWhereALoopIsLeftIsToldLater) {
  for (const int n : {1, 2})
    (void)on_workers(n, [](const Group& group, SmallNet& net) {
      net.first->weight.requires_grad_(false);
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1});
      auto data = loader(std::make_shared<SmallExamples>(32), group, {.lanes = 4, .lane_batch = 4});
      for (auto& step : data) {
        for (auto& lane : step) {
          if (!lane.first) break;
          net.first->weight.requires_grad_(step.number == 0);
          auto scope = ddp.lane(lane);
          if (!lane.last) torch::mse_loss(net.forward(lane.data), lane.target).backward();
        }
        if (step.number == 0) {
          EXPECT_THROW(optimizer.step(), UsageError);
          ddp.reset();
        } else {
          EXPECT_NO_THROW(optimizer.step());
        }
      }
    });
}

// Of 34 examples step 1 has one lane, and worker 1 none. Told to both, the failure is caught, and the loop
// goes on, or ends there and another follows.
TEST(Idle, AFailedStepInWhichAWorkerHasNoLaneIsGivenUpAndGoneOnBehind) {
  for (const bool left : {false, true}) {
    const auto results = on_workers(2, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
      SGD optimizer(ddp, {.lr = 0.1});
      int failed = 0;
      for (int loop = 0; loop < 2; ++loop)
        for (auto& step : loader(std::make_shared<SmallExamples>(34), group,
                                 {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2})) {
          try {
            for (auto& lane : step) {
              auto scope = ddp.lane(lane);
              auto hidden = net.norm(net.first(lane.data));
              (loop == 0 && step.number == 1 ? hidden : net.second(hidden)).square().mean().backward();
            }
            optimizer.step();
          } catch (const UsageError&) {  // 'second' has no gradient
            ++failed;
            ddp.reset();
            if (left) break;
          }
        }
      EXPECT_EQ(failed, 1);
      EXPECT_EQ(ddp.reducer().exchanges(), left ? 1 + 4 : 3 + 4);
    });
    expect_alike(results);
  }
}

// Of 18 examples step 1 has a lane for worker 0, one that worker 1 passes over, and none for worker 2. What
// the failure's message accepts: the same step again.
TEST(Idle, AFailedStepThatAWorkerPassedOverIsGoneThroughAgain) {
  const auto results = on_workers(3, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(18), group,
                             {.lanes = 6, .lane_batch = 2, .last_step = LastStep::short_, .epochs = 2})) {
      const int failures = step.number == 1 ? 2 : 0;
      int failed = 0;
      for (bool trained = false; !trained;) try {
          for (auto& lane : step) {
            if (step.number == 1 && group.rank() == 1) continue;
            auto scope = ddp.lane(lane);
            auto hidden = net.norm(net.first(lane.data));
            (failed < failures ? hidden : net.second(hidden)).square().mean().backward();
          }
          optimizer.step();
          trained = true;
        } catch (const UsageError&) {  // 'second' has no gradient
          ++failed;
          ddp.reset();
        }
      EXPECT_EQ(failed, failures);
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 4);
  });
  expect_alike(results);
}

// Who had lanes in it says no word of it any more.
TEST(Idle, AFailedStepThatNobodyGivesUpIsToldAgainWhereAWorkerHasNoLane) {
  for (const bool passes_over : {false, true}) {
    on_workers(passes_over ? 3 : 2, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
      auto data = loader(std::make_shared<SmallExamples>(passes_over ? 18 : 34), group,
                         {.lanes = passes_over ? 6 : 8,
                          .lane_batch = passes_over ? 2 : 4,
                          .last_step = LastStep::short_,
                          .epochs = 2});
      const auto train = [&] {
        for (auto& step : data)
          for (auto& lane : step) {
            if (passes_over && step.number == 1 && group.rank() == 1) continue;
            auto scope = ddp.lane(lane);
            auto hidden = net.norm(net.first(lane.data));
            (step.number == 1 ? hidden : net.second(hidden)).square().mean().backward();
          }
      };
      EXPECT_THROW(train(), UsageError);  // 'second' has no gradient
      EXPECT_THROW(train(), UsageError);
      group.barrier();  // no rank is still in a call of that step
    });
  }
}

// Also where it has failed behind its exchange. Of six lanes worker 3 has none.
TEST(Idle, AStepInWhichReplicasDifferedIsToldAgainWhereAWorkerHasNoLane) {
  on_workers(4, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.check_replicas_every = 1});
    {
      const torch::NoGradGuard no_grad;
      if (group.rank() == 1) net.second->weight.add_(1);
    }
    auto data = loader(std::make_shared<SmallExamples>(24), group, {.lanes = 6, .lane_batch = 2});
    const auto train = [&] {
      for (auto& step : data)
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          net.forward(lane.data).square().mean().backward();
        }
    };
    EXPECT_THROW(train(), MismatchError);
    EXPECT_THROW(train(), MismatchError);
    group.barrier();  // no rank is still in a call of that step, or in the next
  });
}

// Worker 1 passes over all of its lanes, and is told in step().
TEST(Idle, AStepInWhichReplicasDifferedIsToldAgainToWhoPassedOverItsLanes) {
  on_workers(2, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.check_replicas_every = 1});
    SGD optimizer(ddp, {.lr = 0.1});
    {
      const torch::NoGradGuard no_grad;
      if (group.rank() == 1) net.second->weight.add_(1);
    }
    auto data = short_second_step(group);
    int caught = 0;
    const auto train = [&] {
      for (auto& step : data) try {
          for (auto& lane : step) {
            if (group.rank() == 1) continue;
            auto scope = ddp.lane(lane);
            net.forward(lane.data).square().mean().backward();
          }
          optimizer.step();
        } catch (const MismatchError&) {
          ++caught;
        }
    };
    EXPECT_THROW(train(), MismatchError);
    EXPECT_GE(caught, 1);
    group.barrier();  // no rank is still in a call of that step, or in the next
  });
}

std::unique_ptr<Replicated> at_stage(int stage, SmallNet& net, const Group& group) {
  if (stage == 0) return std::make_unique<DataParallel>(borrowed(net), group);
  return std::make_unique<Sharded>(borrowed(net), group, static_cast<ShardStage>(stage));
}

// An exception of worker 0's own, in the lane of a step in which worker 1 has none and listens: it is told of
// the exchange as of any other, and is through with the loop before something else is exchanged behind it.
TEST(Idle, AnExceptionOfOneWorkersOwnLeavesTheOthersNotWaiting) {
  for (const int stage : {0, 1, 2})
    for (const bool trained : {false, true}) {
      const auto results = on_workers(2, [=](const Group& group, SmallNet& net) {
        const auto strategy = at_stage(stage, net, group);
        SGD optimizer(*strategy, {.lr = 0.1});
        for (auto& step : short_second_step(group)) {
          try {
            for (auto& lane : step) {
              auto scope = strategy->lane(lane);
              const torch::Tensor loss = net.forward(lane.data).square().mean();
              if (trained || step.number != 1) loss.backward();
              if (step.number == 1) throw std::runtime_error("no room for a picture");
            }
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "no room for a picture");
          }
          clip_grad_norm_(*strategy, 0.5);
          optimizer.step();
        }
        EXPECT_EQ(strategy->reducer().exchanges(), trained ? 4 : 3);
      });
      expect_alike(results);
    }
}

// A loop in which all have lanes is over with that step too: what comes next may be nobody's lanes.
TEST(Idle, APlainStepBehindALoopThatAnExceptionOfOneWorkersOwnLeftIsExchanged) {
  for (const int n : {1, 2}) {
    const auto results = on_workers(n, [](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1});
      auto data = short_second_step(group);
      for (auto& step : data) {
        try {
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            if (group.rank() == 0 && lane.last) throw std::runtime_error("no room for a picture");
            net.forward(lane.data).square().mean().backward();
          }
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "no room for a picture");
        }
        optimizer.step();
        break;
      }
      loss_of(net, group.rank(), 0).backward();
      optimizer.step();
      EXPECT_EQ(ddp.reducer().exchanges(), 2);
    });
    expect_alike(results);
  }
}

// As the page on training has it, in a step of all workers' and in one in which worker 1 has no lane: as if
// its examples were none of the run's.
TEST(Idle, AStepIsGivenUpTogetherBehindAnExceptionOfOneWorkersOwn) {
  for (const std::int64_t failing : {0, 1}) {
    const auto results = on_workers(2, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1});
      for (auto& step : short_second_step(group)) {
        const Tensors before = copies(net);
        int failed = 0;
        try {
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            if (step.number == failing && group.rank() == 0 && lane.last)
              throw std::runtime_error("no room for a picture");
            net.forward(lane.data).square().mean().backward();
          }
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "no room for a picture");
          failed = 1;
        }
        ddp.synchronize();
        EXPECT_EQ(group.all_reduce(failed, {.op = ReduceOp::max}), step.number == failing ? 1 : 0);
        if (step.number != failing) {
          optimizer.step();
          continue;
        }
        ddp.reset();
        for (std::size_t i = 0; i < net.parameters().size(); ++i)
          EXPECT_TRUE(torch::equal(copies(net)[i], before[i]));
      }
    });
    expect_alike(results);
  }
}

// All are told of it: it is not taken for what they listen for, nor given that as its result.
TEST(Idle, ACallOfTheProgramsOwnIsNoWordOfALoopThatWasLeft) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      for (auto& step : short_second_step(group)) {
                                        bool failed = false;
                                        try {
                                          for (auto& lane : step) {
                                            auto scope = ddp.lane(lane);
                                            if (step.number == 1) throw std::runtime_error("no room");
                                            net->forward(lane.data).square().mean().backward();
                                          }
                                        } catch (const MismatchError&) {
                                          throw;
                                        } catch (const std::runtime_error&) {
                                          failed = true;
                                        }
                                        if (failed) (void)group.all_reduce(0, {.op = ReduceOp::max});
                                        ddp.synchronize();
                                        ddp.end_step();
                                      }
                                    }),
                {"rank 0 called all_reduce(i32 × 1, max)", "rank 1 called all_reduce(i64 × 11, max)"});
}

// Its loop ends with that error, of which no other worker knows: worker 3, which has no lane, still listens.
TEST(Idle, ABackwardThatThrewBeforeALoopIsLeftEarlyIsThisWorkersOwn) {
  const auto results = on_workers(4, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(24), group, {.lanes = 6, .lane_batch = 2})) {
      bool threw = false;
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
      EXPECT_EQ(threw, group.rank() == 0 && step.number == 0);
      if (threw) ddp.reset();
      optimizer.step();
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
  });
  expect_alike(results);
}

// Inside of the backward of a lane whose gradients don't leave yet: as if nothing had been.
TEST(Idle, AStepWhoseFirstLanesBackwardThrewOnOneWorkerIsDoneAgainByAll) {
  const auto train = [](bool throws) {
    const auto results = on_workers(2, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1});
      bool to_throw = throws && group.rank() == 0;
      for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 2}))
        for (bool trained = false; !trained;) try {
            for (auto& lane : step) {
              auto scope = ddp.lane(lane);
              auto hidden = net.norm(net.first(lane.data));
              if (to_throw) {
                to_throw = false;
                hidden.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::bad_alloc(); });
              }
              net.second(hidden).square().mean().backward();
            }
            optimizer.step();
            trained = true;
          } catch (const std::exception&) {  // that one, and what all are told of this worker's reset()
            ddp.reset();
          }
      EXPECT_EQ(ddp.reducer().exchanges(), 2);
    });
    expect_alike(results);
    return results[0];
  };
  EXPECT_TRUE(equal(train(true), train(false)));
}

// Worker 1 waits with its lanes for step(), where worker 0 is through with its loop first. The same as in a
// step of nobody's exception, but for the lane that never came to its backward.
TEST(Idle, LanesThatWaitUnderNoSyncJoinWhereAnotherWorkersLoopWasLeft) {
  const auto train = [](bool throws) {
    const auto results = on_workers(3, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1});
      for (auto& step : loader(std::make_shared<SmallExamples>(18), group,
                               {.lanes = 6, .lane_batch = 2, .last_step = LastStep::short_, .epochs = 2})) {
        const bool leaves = step.number == 1 && group.rank() == 0;
        try {
          const auto guard = ddp.no_sync();
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            if (leaves && lane.last) {
              if (throws) throw std::runtime_error("no room for a picture");
              continue;
            }
            net.forward(lane.data).square().mean().backward();
          }
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "no room for a picture");
        }
        optimizer.step();
      }
      EXPECT_EQ(ddp.reducer().exchanges(), 4);
    });
    expect_alike(results);
    return results[0];
  };
  EXPECT_TRUE(equal(train(true), train(false)));
}

// Whose loop then is nobody's.
TEST(Idle, AStrategyThatFailedMayBeReplacedBeforeItsLoadersNextStep) {
  const auto results = on_workers(2, [](const Group& group, SmallNet& net) {
    auto data = short_second_step(group);
    {
      DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
      const auto train = [&] {
        for (auto& step : data)
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            auto hidden = net.norm(net.first(lane.data));
            (step.number == 1 ? hidden : net.second(hidden)).square().mean().backward();
          }
      };
      EXPECT_THROW(train(), UsageError);  // 'second' has no gradient
    }
    DataParallel ddp(borrowed(net), group);
    loss_of(net, group.rank(), 0).backward();
    EXPECT_EQ(ddp.reducer().exchanges(), 1);
  });
  expect_alike(results);
}

// The exception goes on once the step was given up, inside of the loop that it leaves.
TEST(Idle, AFailedStepMayBeGivenUpInsideItsLoop) {
  const auto results = on_workers(2, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
    SGD optimizer(ddp, {.lr = 0.1});
    auto data = short_second_step(group);
    const auto train = [&](bool fails) {
      for (auto& step : data) {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto hidden = net.norm(net.first(lane.data));
          try {
            (fails && step.number == 1 ? hidden : net.second(hidden)).square().mean().backward();
          } catch (const UsageError&) {  // 'second' has no gradient
            ddp.reset();
            throw;
          }
        }
        optimizer.step();
      }
    };
    EXPECT_THROW(train(true), UsageError);
    if (group.rank() == 1) ddp.reset();
    loss_of(net, group.rank(), 0).backward();
    optimizer.step();
    train(false);
    EXPECT_EQ(ddp.reducer().exchanges(), 1 + 1 + 2);
  });
  expect_alike(results);
}

// Between a loop that an exception has left and its loader's next step, steps are nobody's lanes.
TEST(Idle, APlainStepBehindAFailedOneInWhichAWorkerHasNoLaneIsExchanged) {
  const auto results = on_workers(2, [](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.find_unused_parameters = false});
    SGD optimizer(ddp, {.lr = 0.1});
    auto data = loader(std::make_shared<SmallExamples>(34), group,
                       {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2});
    const auto train = [&](bool fails) {
      for (auto& step : data) {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto hidden = net.norm(net.first(lane.data));
          (fails && step.number == 1 ? hidden : net.second(hidden)).square().mean().backward();
        }
        optimizer.step();
      }
    };
    EXPECT_THROW(train(true), UsageError);  // 'second' has no gradient
    ddp.reset();
    loss_of(net, group.rank(), 0).backward();
    optimizer.step();
    train(false);
    EXPECT_EQ(ddp.reducer().exchanges(), 1 + 1 + 2);
  });
  expect_alike(results);
}

}  // namespace
}  // namespace lockstep
