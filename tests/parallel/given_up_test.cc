// Steps that are given up by reset(): by one rank alone, or by all. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

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

// Of which the means were of no use to anybody.
TEST(OutOfStep, ARankThatGivesItsBackwardUpAloneIsIdleBehindMeansThatAllGaveUpToo) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    net->forward(small_batch(group.rank(), 0)).square().mean().backward();
    ddp.reset();
    const torch::Tensor loss = net->forward(small_batch(group.rank(), 1)).square().mean();
    EXPECT_NO_THROW({
      if (group.rank() == 1)
        ddp.reset();  // an exception, caught here alone
      else
        loss.backward();
      optimizer.step();
    });
    EXPECT_EQ(ddp.reducer().exchanges(), 2);
  });
}

// Behind torch's step, which ends none, so that the means are there until the next backward: each rank gives
// up in another phase. `behind`: what comes then.
template <class Behind>
void reset_from_other_phases(const Behind& behind) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto backward = [&](int step) {
      net->forward(small_batch(group.rank(), step)).square().mean().backward();
    };
    backward(0);
    optimizer.step();
    optimizer.zero_grad();
    {
      const auto guard = ddp.no_sync();
      if (group.rank() == 0) backward(1);  // rank 1's forward threw, and it says so
    }
    ddp.reset();
    EXPECT_NO_THROW(behind(ddp, group.rank(), backward));
  });
}

TEST(OutOfStep, AResetOfEveryRankBehindTorchsStepIsFineWhereverEachWas) {
  reset_from_other_phases([](DataParallel&, int, const auto& backward) { backward(2); });
}

// And behind such a one rank 0 gives its backward up alone.
TEST(OutOfStep, ABackwardGivenUpAloneBehindAResetOfAllFromOtherPhasesIsIdle) {
  reset_from_other_phases([](DataParallel& ddp, int rank, const auto& backward) {
    if (rank == 0)
      ddp.reset();
    else
      backward(1);
    ddp.synchronize();
  });
}

// In a step that nobody has gradients in all meet, too.
TEST(OutOfStep, ARankThatGaveMeansUpAloneIsNamedInAStepOfNobodysToo) {
  expect_in_all(told<MismatchError>(2,
                                    [](const Group& group) {
                                      auto net = std::make_shared<SmallNet>();
                                      DataParallel ddp(net, group, {.check_replicas_every = 0});
                                      SGD optimizer(ddp, {.lr = 0.1});
                                      net->forward(small_batch(group.rank(), 0)).square().mean().backward();
                                      group.rank() == 0 ? optimizer.step() : ddp.reset();
                                      optimizer.step();  // nobody's loss is finite
                                    }),
                {"rank 0 has called reset() 0 times", "rank 1 has called reset() once"});
}

}  // namespace
}  // namespace lockstep
