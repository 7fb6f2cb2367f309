// Ranks that are not where the others are. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <mutex>
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

void train_lane(DataParallel& ddp, SmallNet& net, int rank, int step) {
  auto scope = ddp.lane({.step = step, .index = rank, .total_weight = 3});
  net.forward(small_batch(rank, step)).square().mean().backward();
}

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

TEST(OutOfStep, ARankThatResetsAloneIsNamed) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group);
                                      SGD optimizer(ddp, {.lr = 0.1});
                                      if (group.rank() == 1) ddp.reset();  // an exception, caught here alone
                                      net->forward(small_batch(group.rank(), 0)).square().mean().backward();
                                    }),
                {"rank 0 has called reset() 0 times", "rank 1 has called reset() once"});
}

// Rank 0 updates with the means that rank 1 gives up, which has no gradient in the step behind.
TEST(OutOfStep, ARankThatGivesMeansUpAloneIsNamedWithoutGradientsToo) {
  expect_in_all(
      told<MismatchError>(2,
                          [](const Group& group) {
                            auto net = std::make_shared<SmallNet>();
                            DataParallel ddp(net, group);
                            SGD optimizer(ddp, {.lr = 0.1});
                            const int rank = group.rank();
                            net->forward(small_batch(rank, 0)).square().mean().backward();
                            if (rank == 0) {
                              optimizer.step();
                              net->forward(small_batch(rank, 1)).square().mean().backward();
                            } else {
                              ddp.reset();
                            }
                            ddp.synchronize();
                          }),
      {"rank 0 has called reset() 0 times", "rank 1 has called reset() once",
       "accepted: reset() on every rank when one calls it (behind an exchange", "from a checkpoint"});
}

// Rank 0's bucket leaves inside of its backward, rank 1's at its end, since `second` gets no gradient there.
TEST(OutOfStep, ResetsBehindAFailureInsideABackwardCountLikeThoseBehindOneAtItsEnd) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    int failed = 0;
    DataParallel ddp(net, group, {.check_replicas_every = 0, .hook = [&](const Bucket& bucket) {
                                    if (failed < 2) throw std::runtime_error("no link");
                                    return group.all_reduce_async(bucket.data);
                                  }});
    const auto backward = [&] {
      auto hidden = net->norm(net->first(small_batch(group.rank(), 0)));
      (group.rank() == 0 ? net->second(hidden) : hidden).square().mean().backward();
    };
    for (; failed < 2; ++failed) {
      try {
        backward();
        ADD_FAILURE() << "it went on";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "no link");
      }
      ddp.reset();
    }
    EXPECT_NO_THROW(backward());
  });
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

// It is as one that skips its backward: nothing of that step was exchanged yet.
TEST(OutOfStep, ARankThatGivesItsBackwardUpAloneIsIdleInThatStep) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor loss = net->forward(small_batch(group.rank(), step)).square().mean();
      if (group.rank() == 1 && step == 1)
        ddp.reset();  // an exception, caught here alone
      else
        loss.backward();
      EXPECT_NO_THROW(optimizer.step());
      EXPECT_EQ(ddp.reducer().exchanges(), step + 1);
    }
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

// Nothing was averaged, and the group works: told of it, all may give the step up together and go on.
TEST(OutOfStep, AResetOfEveryRankGoesOnAfterTheError) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    if (group.rank() == 1) ddp.reset();
    const auto backward = [&] { net->forward(small_batch(group.rank(), 0)).square().mean().backward(); };
    EXPECT_THROW(backward(), MismatchError);
    ddp.reset();
    EXPECT_NO_THROW(backward());
  });
}

// Rank 2 has no gradients, and is told of it as the others are. None of them asks the others again until it
// gives the step up, whatever it calls: they would be met in the middle of their next step.
TEST(OutOfStep, AStepThatFailedThrowsTheSameOnEveryRankUntilReset) {
  on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    const auto told = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const MismatchError& error) {
        return error.what();
      }
      return "nothing";
    };
    const int rank = group.rank();
    const std::string first = told([&] {
      if (rank < 2) train_lane(ddp, *net, rank, 4 + rank);
      ddp.synchronize();
    });
    EXPECT_NE(first.find("rank 1 is in step 5"), std::string::npos) << first;
    const auto backward = [&] { net->forward(small_batch(rank, 0)).square().mean().backward(); };
    EXPECT_EQ(told([&] { ddp.synchronize(); }), first);
    EXPECT_EQ(told([&] { optimizer.step(); }), first);
    EXPECT_EQ(told([&] { ddp.reducer().synchronize_idle({{.number = 6}}); }),
              first);  // a step in which it has no lane
    EXPECT_EQ(told(backward), first);
    EXPECT_EQ(told([&] { train_lane(ddp, *net, rank, 6); }), first);
    EXPECT_EQ(ddp.reducer().exchanges(), 0);
    ddp.reset();
    EXPECT_EQ(told(backward), "nothing");
    EXPECT_EQ(ddp.reducer().exchanges(), 1);
  });
}

// Rank 1 gives its forward up, and rank 0's loss is not finite: all go through that step together, and it is
// over.
TEST(OutOfStep, AResetInAStepThatNobodyHasGradientsInIsForgotten) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    if (group.rank() == 1) ddp.reset();
    optimizer.step();
    EXPECT_NO_THROW(net->forward(small_batch(group.rank(), 0)).square().mean().backward());
  });
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
