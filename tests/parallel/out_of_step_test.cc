// Ranks that are not where the others are. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <new>
#include <stdexcept>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"
#include "parallel/told.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_in_all;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::told;
using lockstep::testing::train_lane;

TEST(OutOfStep, ARankThatSkippedABatchIsNamed) {
  expect_in_all(told<MismatchError>(3,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      SGD optimizer(ddp, {.lr = 0.1});
                                      for (int step = 0; step < 3; ++step) {
                                        if (group.rank() == 1 && step == 1) continue;
                                        train_lane(ddp, *net, group.rank(), step);
                                        optimizer.step();
                                      }
                                    }),
                {"rank 0 is in step 1", "rank 1 is in step 2", "ends it with synchronize() and end_step()"});
}

TEST(OutOfStep, ARankWithoutLanesHearsOfItToo) {
  expect_in_all(told<MismatchError>(3,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      if (group.rank() < 2)
                                        train_lane(ddp, *net, group.rank(), 4 + group.rank());
                                      ddp.synchronize();
                                    }),
                {"rank 0 is in step 4", "rank 1 is in step 5"});
}

// Of 34 examples step 1 has one lane, and rank 1 none. Rank 0 gives it up alone and goes on; rank 1 ends it.
TEST(OutOfStep, ARankBehindALoopWithoutLanesIsInThatStep) {
  const auto train = [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(34), group,
                             {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2})) {
      EXPECT_LE(ddp.reducer().exchanges(), 1);
      try {
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          if (step.number == 1) throw std::bad_alloc();
          net->forward(lane.data).square().mean().backward();
        }
      } catch (const std::bad_alloc&) {
        ddp.reset();
        continue;
      }
      optimizer.step();
    }
  };
  expect_in_all(told<MismatchError>(2, train), {"rank 0 is in step 2", "rank 1 is in step 1"});
}

// Also behind one that its own exception has left, where it ends that step and the other one doesn't.
TEST(OutOfStep, ARankWhoseOwnExceptionLeftItsLanesIsInThatStep) {
  const auto train = [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(std::make_shared<SmallExamples>(34), group,
                             {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2})) {
      EXPECT_LE(ddp.reducer().exchanges(), 1);
      try {
        for (auto& lane : step) {
          if (step.number == 1) throw std::bad_alloc();
          auto scope = ddp.lane(lane);
          net->forward(lane.data).square().mean().backward();
        }
      } catch (const std::bad_alloc&) {
        optimizer.step();
      }
      if (step.number != 1) optimizer.step();
    }
  };
  expect_in_all(told<MismatchError>(2, train), {"rank 1 is in step 2", "rank 0 is in step 1"});
}

// But where it may be behind any of two.
TEST(OutOfStep, ARankBehindLoopsOfTwoLoadersIsInNoStep) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    const auto examples = std::make_shared<SmallExamples>(16);
    auto data = loader(examples, group, {.lanes = 2, .lane_batch = 4});
    for (auto& step : data) {
      {
        const auto guard = ddp.no_sync();
        for (auto& lane : step) {
          if (group.rank() == 1) continue;
          auto scope = ddp.lane(lane);
          net->forward(lane.data).square().mean().backward();
        }
      }
      for (auto& other : loader(examples, group, {.lanes = 2, .lane_batch = 8}))
        for (auto& lane : other) net->forward(lane.data);
      EXPECT_NO_THROW(optimizer.step());
    }
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
  });
}

// The loop that an exception has left is over with that step, or with its loader's next where all were told
// of a failure in it (of 'second', which gets no gradient).
TEST(OutOfStep, AnExceptionOfARanksOwnBehindAStepThatWasLeftIsNoOtherStep) {
  for (const bool told : {false, true})
    on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [=](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, group, {.find_unused_parameters = !told});
      SGD optimizer(ddp, {.lr = 0.1});
      for (auto& step :
           loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2, .lane_batch = 4, .epochs = 2})) {
        const bool own = step.number == 2 || (step.number == 1 && !told);
        try {
          for (auto& lane : step) {
            if (own && group.rank() == 0) throw std::runtime_error("no room for a picture");
            auto scope = ddp.lane(lane);
            auto hidden = net->norm(net->first(lane.data));
            (told && step.number == 1 ? hidden : net->second(hidden)).square().mean().backward();
          }
        } catch (const UsageError&) {
          EXPECT_TRUE(told && step.number == 1);
          ddp.reset();
          continue;
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "no room for a picture");
        }
        EXPECT_NO_THROW(optimizer.step());
      }
      EXPECT_EQ(ddp.reducer().exchanges(), told ? 3 : 4);
    });
}

TEST(OutOfStep, LanesHereAndNoneThereAreNamed) {
  expect_in_all(told<MismatchError>(3,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      if (group.rank() != 2) return train_lane(ddp, *net, group.rank(), 0);
                                      net->forward(small_batch(2, 0)).square().mean().backward();
                                    }),
                {"rank 0 is in lanes of step 0", "rank 2 calls backward without a lane",
                 "accepted: lanes on every rank, or on none"});
}

TEST(OutOfStep, TwoModelsInAnotherOrderAreNamed) {
  expect_in_all(
      told<MismatchError>(2,
                          [](const Group& group) {
                            auto a = std::make_shared<SmallNet>();
                            auto b = std::make_shared<SmallNet>();
                            DataParallel ddp_a(a, group);
                            DataParallel ddp_b(b, group);
                            (group.rank() == 0 ? a : b)->forward(small_batch(0, 0)).mean().backward();
                          }),
      {"rank 0 exchanges gradients of model 0", "rank 1 exchanges gradients of model 1",
       "accepted: the same models in the same order on every rank"});
}

// In one loop: where rank 0 skips the one's last backward, that one is exchanged behind the loop, and so
// behind the other.
TEST(OutOfStep, OneOfTwoModelsThatIsSkippedInTheLastLaneIsNamed) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      auto other = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      DataParallel ddp_other(other, group);
                                      for (auto& step : loader(std::make_shared<SmallExamples>(16), group,
                                                               {.lanes = 4, .lane_batch = 2}))
                                        for (auto& lane : step) {
                                          auto scope = ddp.lane(lane);
                                          auto scope_other = ddp_other.lane(lane);
                                          const auto loss = net->forward(lane.data).square().mean();
                                          if (group.rank() == 1 || !lane.last) loss.backward();
                                          other->forward(lane.data).square().mean().backward();
                                        }
                                    }),
                {"exchanges gradients of model 0", "exchanges gradients of model 1",
                 "accepted: the same models in the same order on every rank"});
}

// Skipped together they keep their order, where they were wrapped in that of their backwards.
TEST(OutOfStep, TwoModelsThatAreBothSkippedInTheLastLaneKeepTheirOrder) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    auto other = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    DataParallel ddp_other(other, group);
    EXPECT_NO_THROW({
      for (auto& step : loader(std::make_shared<SmallExamples>(16), group, {.lanes = 4, .lane_batch = 2}))
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto scope_other = ddp_other.lane(lane);
          if (group.rank() == 0 && lane.last) continue;
          net->forward(lane.data).square().mean().backward();
          other->forward(lane.data).square().mean().backward();
        }
    });
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
    EXPECT_EQ(ddp_other.reducer().exchanges(), 2);
  });
}

// In one backward the second's exchange begins inside of the first's, and a worker without lanes is asked for
// one after the other.
TEST(OutOfStep, TwoModelsInOneBackwardAreNamedWhereAWorkerHasNoLane) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      auto critic = std::make_shared<torch::nn::LinearImpl>(3, 1);
                                      DataParallel ddp(net, group);
                                      DataParallel ddp_critic(torch::nn::Linear(critic), group);
                                      for (auto& step : loader(
                                               std::make_shared<SmallExamples>(10), group,
                                               {.lanes = 4, .lane_batch = 2, .last_step = LastStep::short_}))
                                        for (auto& lane : step) {
                                          auto scope = ddp.lane(lane);
                                          auto scope_critic = ddp_critic.lane(lane);
                                          critic->forward(net->forward(lane.data)).square().mean().backward();
                                        }
                                    }),
                {"ranks called different things"});
}

// The last step of an epoch is shorter: its sums are divided by another number, and still it is the step that
// is told.
TEST(OutOfStep, ARankThatIsInAShorterStepIsNamedToo) {
  expect_in_all(told<MismatchError>(
                    2,
                    [](const Group& group) {
                      auto net = std::make_shared<SmallNet>();
                      DataParallel ddp(net, group);
                      SGD optimizer(ddp, {.lr = 0.1});
                      for (int step = 0; step < 3; ++step) {
                        if (group.rank() == 1 && step == 1) continue;
                        {
                          auto scope = ddp.lane(
                              {.step = step, .index = group.rank(), .total_weight = step == 2 ? 3.0 : 2.0});
                          net->forward(small_batch(group.rank(), step)).square().mean().backward();
                        }
                        optimizer.step();
                      }
                    }),
                {"rank 0 is in step 1", "rank 1 is in step 2"});
}

// A worker whose lanes all brought nothing has the number of their step.
TEST(OutOfStep, ARankThatSkipsAllItsLanesIsComparedToo) {
  expect_in_all(told<MismatchError>(
                    2,
                    [](const Group& group) {
                      auto net = std::make_shared<SmallNet>();
                      DataParallel ddp(net, group);
                      SGD optimizer(ddp, {.lr = 0.1});
                      for (int step = 0; step < 3; ++step) {
                        if (group.rank() == 1 && step == 1) continue;
                        {
                          auto scope = ddp.lane({.step = step, .index = group.rank(), .total_weight = 2});
                          auto loss = net->forward(small_batch(group.rank(), step)).square().mean();
                          if (group.rank() == 0 || step != 2) loss.backward();
                        }
                        optimizer.step();
                      }
                    }),
                {"rank 0 is in step 1", "rank 1 is in step 2"});
}

// Of a plain loop's step with two exchanges one rank skips the second.
TEST(OutOfStep, ASkippedSecondBackwardOfAStepIsNamed) {
  expect_in_all(
      told<MismatchError>(
          2,
          [](const Group& group) {
            auto net = std::make_shared<SmallNet>();
            DataParallel ddp(net, group, {.check_replicas_every = 0});
            SGD optimizer(ddp, {.lr = 0.1});
            for (int step = 0; step < 3; ++step) {
              optimizer.zero_grad();
              for (int micro = 0; micro < 2; ++micro)
                if (group.rank() == 0 || step != 1 || micro == 0)
                  net->forward(small_batch(group.rank(), 2 * step + micro)).square().mean().backward();
              optimizer.step();
            }
          }),
      {"rank 0 is in backward 2 of step 1", "rank 1 is in backward 1 of step 2"});
}

TEST(OutOfStep, DivisorsThatDifferInTheLastPlaceAreTold) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      const double total = group.rank() == 0 ? 3.3 : 3.3000000000000003;
                                      auto scope = ddp.lane({.index = group.rank(), .total_weight = total});
                                      net->forward(small_batch(group.rank(), 0)).square().mean().backward();
                                    }),
                {"rank 0 divides by 3.3,", "rank 1 divides by 3.3000000000000003;",
                 "accepted: the same total_weight on every rank"});
}

// One without gradients too: it would take the gradients of the one model for those of the other.
TEST(OutOfStep, AnIdleRankThatMeansAnotherModelIsNamed) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto a = std::make_shared<SmallNet>();
                                      auto b = std::make_shared<SmallNet>();
                                      DataParallel ddp_a(a, group);
                                      DataParallel ddp_b(b, group);
                                      if (group.rank() == 0) {
                                        a->forward(small_batch(0, 0)).square().mean().backward();
                                        b->forward(small_batch(1, 0)).square().mean().backward();
                                      } else {
                                        ddp_b.synchronize();
                                        ddp_a.synchronize();
                                      }
                                    }),
                {"model 0", "model 1"});
}

// Six lanes on four workers: the last one never has a lane, but it knows the number of each step.
TEST(OutOfStep, AnIdleRankInAnotherStepIsNamed) {
  expect_in_all(told<MismatchError>(4,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      SGD optimizer(ddp, {.lr = 0.1});
                                      auto data = std::make_shared<SmallExamples>(6 * 4 * 3);
                                      for (auto& step : loader(data, group, {.lanes = 6, .lane_batch = 4})) {
                                        if (group.rank() == 3 && step.number == 1) continue;
                                        for (auto& lane : step) {
                                          auto scope = ddp.lane(lane);
                                          net->forward(lane.data).square().mean().backward();
                                        }
                                        optimizer.step();
                                      }
                                    }),
                {"is in step 1", "rank 3 is in step 2"});
}

// Lanes would overlap, and some examples be seen by nobody.
TEST(OutOfStep, LoadersThatDifferAreNamed) {
  const LoaderOptions same{.lanes = 4, .lane_batch = 4, .seed = 3};
  LoaderOptions seed = same, batch = same, lanes = same, shuffle = same, steps = same;
  seed.seed = 4;
  batch.lane_batch = 2;
  lanes.lanes = 2;
  shuffle.shuffle = false;
  steps.epochs = 2;
  for (const LoaderOptions& other : {seed, batch, lanes, shuffle, steps})
    expect_in_all(
        told<MismatchError>(2,
                            [&](const Group& group) {
                              auto net = std::make_shared<SmallNet>();
                              DataParallel ddp(net, group);
                              SGD optimizer(ddp, {.lr = 0.1});
                              auto data = std::make_shared<SmallExamples>(16);
                              for (auto& step : loader(data, group, group.rank() == 1 ? other : same)) {
                                for (auto& lane : step) {
                                  auto scope = ddp.lane(lane);
                                  net->forward(lane.data).square().mean().backward();
                                }
                                optimizer.step();
                              }
                            }),
        {"draw their lanes from other data", "rank 1", "rank 0", "lane_batch"});
}

// What the lanes of a step gave under no_sync() is not lost without a word where the next step begins.
TEST(OutOfStep, AStepOfLanesThatWasNotExchangedIsNotForgotten) {
  for (const int n : {1, 2})
    expect_in_all(told<UsageError>(n,
                                   [](const Group& group) {
                                     auto net = std::make_shared<SmallNet>();
                                     DataParallel ddp(net, group);
                                     auto data = std::make_shared<SmallExamples>(16);
                                     for (auto& step : loader(data, group, {.lanes = 2, .lane_batch = 4})) {
                                       const auto guard = ddp.no_sync();
                                       for (auto& lane : step) {
                                         auto scope = ddp.lane(lane);
                                         net->forward(lane.data).square().mean().backward();
                                       }
                                     }
                                   }),
                  {"first lane begins", "the step before was not ended"});
}

// A second loader, at the same number of steps, goes on while the lanes of the first are gone through.
TEST(OutOfStep, TheStepsOfAnotherLoaderDoNotEndALoop) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<SmallNet>();
  DataParallel ddp(net, group);
  SGD optimizer(ddp, {.lr = 0.1});
  auto data = std::make_shared<SmallExamples>(16);
  Loader other = loader(data, group, {.lanes = 2, .lane_batch = 2});
  for (auto& step : loader(data, group, {.lanes = 2, .lane_batch = 4, .steps = 1})) {
    ASSERT_EQ(other.next()->number, step.number);
    for (auto& lane : step) {
      auto scope = ddp.lane(lane);
      net->forward(lane.data).square().mean().backward();
      if (lane.first) {
        EXPECT_NE(other.next(), nullptr);  // lets go of the step of the same number
      }
      EXPECT_EQ(ddp.reducer().exchanges(), step.number + (lane.last ? 1 : 0));
    }
    optimizer.step();
  }
}

TEST(OutOfStep, APlainLoopAfterALoopOverLanesThatWasLeftIsFine) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<SmallNet>();
  DataParallel ddp(net, group);
  {
    Loader lanes = loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2, .lane_batch = 4});
    for (auto& step : lanes) {
      for (auto& lane : step) {
        (void)lane;
        break;
      }
      break;
    }
  }
  net->forward(small_batch(0, 0)).mean().backward();
  EXPECT_EQ(ddp.reducer().exchanges(), 1);
}

TEST(OutOfStep, APlainStepAfterResetInALoopThatThrewIsFine) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<SmallNet>();
  DataParallel ddp(net, group);
  Loader lanes = loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2, .lane_batch = 4});
  try {
    for (auto& step : lanes)
      for (auto& lane : step) {
        auto scope = ddp.lane(lane);
        throw std::runtime_error("no memory");
      }
  } catch (const std::runtime_error&) {
    ddp.reset();
  }
  net->forward(small_batch(0, 0)).mean().backward();
  EXPECT_EQ(ddp.reducer().exchanges(), 1);
}

// The loop's end was to come on every worker, and both models are told that it is not awaited.
TEST(OutOfStep, AnotherModelsPlainStepBehindALoopThatThrewIsFine) {
  for (const int n : {1, 2})
    on_threads(thread_groups(n, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      auto other = std::make_shared<SmallNet>();
      DataParallel ddp(net, group, {.find_unused_parameters = false});
      DataParallel ddp_other(other, group);
      Loader data = loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2, .lane_batch = 4});
      const auto train = [&] {
        for (auto& step : data)
          for (auto& lane : step) {
            auto scope = ddp.lane(lane);
            net->norm(net->first(lane.data)).square().mean().backward();
          }
      };
      EXPECT_ANY_THROW(train());  // 'second' has no gradient
      ddp.reset();
      EXPECT_NO_THROW(other->forward(small_batch(group.rank(), 0)).square().mean().backward());
      EXPECT_EQ(ddp_other.reducer().exchanges(), 1);
    });
}

TEST(OutOfStep, APlainLoopAfterALoaderWasReplacedIsFine) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<SmallNet>();
  DataParallel ddp(net, group);
  const auto make = [&] {
    return loader(std::make_shared<SmallExamples>(16), group, {.lanes = 2, .lane_batch = 4});
  };
  Loader lanes = make();
  for (auto& lane : *lanes.next()) {
    (void)lane;
    break;
  }
  lanes = make();
  net->forward(small_batch(0, 0)).mean().backward();
  EXPECT_EQ(ddp.reducer().exchanges(), 1);
}

// A table that a model makes for itself when it is first used, as long as the rank's own batch needs it.
TEST(OutOfStep, ABufferMadeInTheFirstForwardIsNoDrift) {
  struct Lazy : torch::nn::Module {
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(6, 3));
    torch::Tensor table;
    torch::Tensor forward(const torch::Tensor& x, int length) {
      if (!table.defined()) table = register_buffer("table", torch::arange(length).to(torch::kFloat32));
      return layer(x) + table[0];
    }
  };
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<Lazy>();
    DataParallel ddp(net, group);
    for (int step = 0; step < 4; ++step) {
      ddp.parameters()[0].tensor.mutable_grad() = torch::Tensor();
      net->forward(small_batch(group.rank(), step), 4 + group.rank()).square().mean().backward();
    }
  });
}

// Without our optimizer nobody calls end_step(); the default options find it all the same, and soon.
TEST(OutOfStep, DriftIsFoundWhoeverUpdates) {
  expect_in_all(
      told<MismatchError>(2,
                          [](const Group& group) {
                            auto net = std::make_shared<SmallNet>();
                            DataParallel ddp(net, group);
                            torch::optim::SGD theirs(net->parameters(), 0.1);
                            SGD listed(ddp.parameters(), {.lr = 0.1});
                            for (int step = 0; step < 9; ++step) {
                              theirs.zero_grad();
                              net->forward(small_batch(group.rank(), step)).square().mean().backward();
                              if (step % 2 == 0)
                                theirs.step();
                              else
                                listed.step();
                              if (group.rank() == 1 && step == 4) {
                                const torch::NoGradGuard no_grad;
                                net->second->bias[1] += 1e-3f;
                              }
                            }
                          }),
      {"drifted apart", "'second.bias' on rank 1"});
}

}  // namespace
}  // namespace lockstep
