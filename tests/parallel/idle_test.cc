// Steps in which some workers, or all, have nothing to give. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <mutex>
#include <set>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/idle_workers.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::borrowed;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::expect_alike;
using lockstep::testing::loss_of;
using lockstep::testing::on_workers;
using lockstep::testing::SmallExamples;
using lockstep::testing::SmallNet;
using lockstep::testing::Tensors;

// A plain loop of n workers with SGD, by hand on one: gradients are the sum over those who run their
// backward, divided by n, buffers the average over them. On a thread of its own as ranks are: what it
// computes may depend on how many threads that has beside it.
Tensors by_hand(int n, int steps, double lr, const std::function<bool(int rank, int step)>& runs_backward) {
  return on_workers(1, [&](const Group&, SmallNet& net) {
    torch::optim::SGD optimizer(net.parameters(), lr);
    for (int step = 0; step < steps; ++step) {
      const Tensors began = copies(net);
      Tensors gradients, buffers;  // summed in f64
      int running = 0;
      for (int rank = 0; rank < n; ++rank) {
        if (!runs_backward(rank, step)) continue;
        const torch::NoGradGuard no_grad;
        auto buffer = began.begin() + static_cast<std::ptrdiff_t>(net.parameters().size());
        for (auto& own : net.buffers()) own.copy_(*buffer++);
        optimizer.zero_grad();
        {
          const torch::AutoGradMode with_grad(true);
          loss_of(net, rank, step).backward();
        }
        const auto add = [first = running == 0](Tensors& sums, std::size_t i, const torch::Tensor& x) {
          if (first)
            sums.push_back(x.to(torch::kFloat64));
          else
            sums[i] += x;
        };
        for (std::size_t i = 0; i < net.parameters().size(); ++i)
          add(gradients, i, net.parameters()[i].grad());
        for (std::size_t i = 0; i < net.buffers().size(); ++i) add(buffers, i, net.buffers()[i]);
        ++running;
      }
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < gradients.size(); ++i)
        net.parameters()[i].mutable_grad().copy_(gradients[i] / n);
      for (std::size_t i = 0; i < buffers.size(); ++i) net.buffers()[i].copy_(buffers[i] / running);
      optimizer.step();
    }
  })[0];
}

// Each has a batch of its own, so that an idle rank's, which has seen it, would show.
TEST(Idle, BuffersAreTheAverageOfThoseWhoRanBackward) {
  for (const int n : {2, 3, 4}) {
    const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0});
      auto loss = loss_of(net, group.rank(), 0);
      if (group.rank() != 1) loss.backward();
      optimizer.step();
    });
    expect_alike(results);
    EXPECT_TRUE(equal(results[0], by_hand(n, 1, 0, [](int rank, int) { return rank != 1; })))
        << n << " workers";
  }
}

TEST(Idle, NothingChangesWhenNobodyRanBackward) {
  for (const int n : {1, 2, 3}) {
    const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < 2; ++step) optimizer.step();
    });
    for (const Tensors& result : results) EXPECT_TRUE(equal(result, copies(SmallNet()))) << n << " workers";
  }
}

// `if (isfinite(loss)) loss.backward()`, and it is not on any of them: batch norm has seen the batch by then.
TEST(Idle, BatchNormIsAsTheStepFoundItWhenNobodyRanBackward) {
  const auto run = [](int n, bool with_bad) {
    return on_workers(n, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(net, group.rank(), step).backward();
        optimizer.step();
        if (!with_bad) continue;
        (void)net.forward(torch::full({4, 6}, std::nanf("")));
        optimizer.step();
      }
    });
  };
  for (const int n : {1, 2, 3}) {
    const auto results = run(n, true);
    expect_alike(results);
    EXPECT_TRUE(equal(results[0], run(n, false)[0])) << n << " workers";
  }
}

TEST(Idle, TheStepsAroundASkippedOneAreAsIfItHadNotBeen) {
  const auto run = [](int n, bool with_skipped) {
    return on_workers(n, [=](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        if (step == 2 && with_skipped) optimizer.step();
        loss_of(net, group.rank(), step).backward();
        optimizer.step();
      }
    });
  };
  for (const int n : {1, 2}) EXPECT_TRUE(equal(run(n, true)[0], run(n, false)[0])) << n << " workers";
}

// Eight lanes of which some are skipped in steps 1 and 3, all of them in step 2: after their forward, or
// before their scope.
enum class Skip { inside, before };
Tensors with_skipped_lanes(int n, Skip skip) {
  const auto skipped = [](int step, int index) {
    return step == 2 || (step == 1 && (index == 2 || index == 3)) ||
           (step == 3 && (index % 4 == 0 || index == 7));
  };
  const auto results = on_workers(n, [=](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group, {.bucket_cap_mb = 1e-4});
    SGD optimizer(ddp, {.lr = 0.1, .momentum = 0.9});
    const LaneRange range = lanes_of(group.rank(), n, 8);
    for (int step = 0; step < 5; ++step) {
      for (int k = 0; k < range.count; ++k) {
        const int index = range.first + k;
        if (skip == Skip::before && skipped(step, index)) continue;
        auto scope = ddp.lane({.step = step,
                               .index = index,
                               .total_weight = 8,
                               .first = k == 0,
                               .last = k == range.count - 1,
                               .position = k});
        auto loss = loss_of(net, index, step);
        if (skipped(step, index)) continue;
        loss.backward();
      }
      optimizer.step();
    }
  });
  expect_alike(results);
  return results[0];
}

TEST(Idle, SkippedLanesGiveTheSameBitsForEveryNumberOfWorkers) {
  const Tensors alone = with_skipped_lanes(1, Skip::inside);
  for (const Skip skip : {Skip::inside, Skip::before})
    for (const int n : {1, 2, 3, 4, 8})
      EXPECT_TRUE(equal(with_skipped_lanes(n, skip), alone)) << n << " workers";
}

// The loop that a user writes, with one line more.
Tensors through_a_loader(int n, Skip skip, bool torch_optimizer) {
  const auto results = on_workers(n, [=](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    SGD ours(ddp, {.lr = 0.1});
    torch::optim::SGD theirs(net.parameters(), 0.1);
    for (Step& step : loader(std::make_shared<SmallExamples>(14), group,
                             {.lanes = 4, .lane_batch = 2, .last_step = LastStep::short_, .epochs = 2})) {
      for (Lane& lane : step) {
        const bool skipped = lane.index == 0 || step.number == 2;
        if (skip == Skip::before && skipped) continue;
        auto scope = ddp.lane(lane);
        const torch::Tensor loss = net.forward(lane.data).square().mean();
        if (!skipped) loss.backward();
      }
      if (torch_optimizer) {
        ddp.synchronize();
        theirs.step();
        theirs.zero_grad();
        ddp.end_step();
      } else {
        ours.step();
        ours.zero_grad();
      }
    }
  });
  expect_alike(results);
  return results[0];
}

TEST(Idle, LanesThatALoopPassesOverAreSkipped) {
  for (const bool torch_optimizer : {false, true}) {
    const Tensors alone = through_a_loader(1, Skip::inside, torch_optimizer);
    for (const Skip skip : {Skip::inside, Skip::before})
      for (const int n : {1, 2, 3, 4})
        EXPECT_TRUE(equal(through_a_loader(n, skip, torch_optimizer), alone))
            << n << " workers" << (torch_optimizer ? ", torch::optim" : "");
  }
}

// Between the exchange and the update: its means are still those of the step before.
TEST(Idle, TheNextStepsLanesMayBeLookedAtBeforeTheUpdate) {
  const auto run = [](int n, bool ahead) {
    const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.5});
      Loader steps = loader(std::make_shared<SmallExamples>(48), group, {.lanes = 4, .lane_batch = 4});
      int seen = 0;
      for (Step* step = steps.next(); step != nullptr;) {
        for (Lane& lane : *step) {
          auto scope = ddp.lane(lane);
          net.forward(lane.data).square().mean().backward();
        }
        if (!ahead) optimizer.step();
        step = steps.next();
        if (step != nullptr)
          for (const Lane& lane : *step) seen += static_cast<int>(lane.samples);
        if (ahead) optimizer.step();
      }
      EXPECT_GT(seen, 0);
    });
    expect_alike(results);
    return results[0];
  };
  for (const int n : {1, 2}) EXPECT_TRUE(equal(run(n, true), run(1, false))) << n << " workers";
}

TEST(Idle, AStepWhoseFirstLaneIsUnknownIsRefused) {
  SmallNet net;
  const auto group = thread_groups(1);
  DataParallel ddp(borrowed(net), group[0]);
  EXPECT_THROW((void)ddp.lane({.index = 1, .total_weight = 2, .first = false}), UsageError);
}

TEST(Idle, AHookGetsTheRealDivisorEverywhere) {
  std::mutex mutex;
  std::multiset<double> divisors;
  const auto results = on_workers(3, [&](const Group& group, SmallNet& net) {
    const auto hook = [&](const Bucket& bucket) {
      {
        const std::lock_guard hold(mutex);
        divisors.insert(bucket.divisor);
      }
      // By the contract's words: the sum, divided.
      group.all_reduce(bucket.data);
      auto* const x = static_cast<float*>(bucket.data.data);
      for (std::size_t i = 0; i < bucket.data.count; ++i) x[i] /= static_cast<float>(bucket.divisor);
      return Work();
    };
    DataParallel ddp(borrowed(net), group, {.hook = hook});
    SGD optimizer(ddp, {.lr = 0.1});
    if (group.rank() != 1) {  // lanes 0 and 2 of three, weights 1 and 3
      auto scope = ddp.lane({.index = group.rank(), .weight = group.rank() + 1.0, .total_weight = 4});
      loss_of(net, group.rank(), 0).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    if (group.rank() != 1) loss_of(net, group.rank(), 1).backward();
    optimizer.step();
  });
  EXPECT_EQ(divisors, (std::multiset<double>{3, 3, 3, 4, 4, 4}));
  expect_alike(results);
}

TEST(Idle, AnIdleRankThatSynchronizesGoesOnInAPlainLoop) {
  const auto results = on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (group.rank() == 0 || step != 0) loss_of(net, group.rank(), step).backward();
      ddp.synchronize();
      optimizer.step();
    }
  });
  expect_alike(results);
  EXPECT_TRUE(
      equal(results[0], by_hand(2, 3, 0.1, [](int rank, int step) { return rank == 0 || step != 0; })));
}

TEST(Idle, EvaluatingThroughALoaderExchangesNothing) {
  on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    auto data = std::make_shared<SmallExamples>(34);
    net.eval();
    for (auto& step : loader(data, group, {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_}))
      for (auto& lane : step) {
        const torch::NoGradGuard no_grad;
        (void)net.forward(lane.data);
      }
    EXPECT_EQ(ddp.reducer().exchanges(), 0);
    net.train();
    loss_of(net, group.rank(), 0).backward();  // a plain loop goes on
    EXPECT_EQ(ddp.reducer().exchanges(), 1);
  });
}

// torch's optimizer does not say that a step is over; the program does, and a rank may skip any step.
TEST(Idle, AnIdleRankThatSynchronizesTakesPartInAnyStepOfAPlainLoop) {
  const auto results = on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (group.rank() == 0 || step != 1) loss_of(net, group.rank(), step).backward();
      ddp.synchronize();
      optimizer.step();
      ddp.end_step();
      EXPECT_EQ(ddp.reducer().exchanges(), step + 1);
    }
  });
  expect_alike(results);
  EXPECT_TRUE(
      equal(results[0], by_hand(2, 3, 0.1, [](int rank, int step) { return rank == 0 || step != 1; })));
}

// A loss scaler gives step 1 up when its gradients are there; in step 2 rank 1 skips its backward.
TEST(Idle, AStepGivenUpAfterBackwardDoesNotHideTheIdleOneBehindIt) {
  const auto results = on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      if (group.rank() == 0 || step != 2) loss_of(net, group.rank(), step).backward();
      if (step != 1) optimizer.step();
      EXPECT_EQ(ddp.reducer().exchanges(), step + 1);
    }
  });
  expect_alike(results);
}

// A loop over lanes may just look at them: nothing is exchanged, on a worker without lanes neither.
TEST(Idle, ALoopWithoutBackwardExchangesNothing) {
  on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    auto data = std::make_shared<SmallExamples>(34);
    for (auto& step : loader(data, group, {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_}))
      for (auto& lane : step) {
        const torch::NoGradGuard no_grad;
        (void)net.forward(lane.data);  // batch norm's statistics alone, so in training mode
      }
    EXPECT_EQ(ddp.reducer().exchanges(), 0);
    group.barrier();
  });
}

TEST(Idle, AStepsLanesMayBeLookedAtBeforeTheyAreTrainedWith) {
  const auto run = [](int n) {
    const auto results = on_workers(n, [&](const Group& group, SmallNet& net) {
      DataParallel ddp(borrowed(net), group);
      SGD optimizer(ddp, {.lr = 0.5});
      auto data = std::make_shared<SmallExamples>(34);
      std::int64_t seen = 0;
      for (auto& step :
           loader(data, group, {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_, .epochs = 2})) {
        for (const auto& lane : step) seen += lane.samples;
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          torch::mse_loss(net.forward(lane.data), lane.target).backward();
        }
        optimizer.step();
      }
      EXPECT_GT(seen, 0);
    });
    expect_alike(results);
    return results[0];
  };
  EXPECT_TRUE(equal(run(2), run(1)));
}

// While gradients stay here, a worker without lanes asks nobody for them either.
TEST(Idle, NoSyncHoldsOnAWorkerWithoutLanesToo) {
  const auto results = on_workers(2, [&](const Group& group, SmallNet& net) {
    DataParallel ddp(borrowed(net), group);
    SGD optimizer(ddp, {.lr = 0.5});
    auto data = std::make_shared<SmallExamples>(34);
    for (auto& step : loader(data, group, {.lanes = 8, .lane_batch = 4, .last_step = LastStep::short_})) {
      std::vector<double> loss = {0};
      {
        auto guard = ddp.no_sync();
        for (auto& lane : step) {
          auto scope = ddp.lane(lane);
          auto of_lane = torch::mse_loss(net.forward(lane.data), lane.target);
          of_lane.backward();
          loss[0] += of_lane.item<double>();
        }
      }
      group.all_reduce(buffer(loss));  // before the gradients are
      EXPECT_EQ(ddp.reducer().exchanges(), step.number);
      optimizer.step();
      EXPECT_EQ(ddp.reducer().exchanges(), step.number + 1);
    }
  });
  expect_alike(results);
}

}  // namespace
}  // namespace lockstep
