// Threads as ranks. torch's default generator is one for all threads, so nothing here draws from it in a
// rank.
#include "lockstep/parallel/data_parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::on_threads;

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using Net = lockstep::testing::SmallNet;

torch::Tensor batch(int lane, int step) { return lockstep::testing::small_batch(lane, step); }

enum class LastWeights { equal, ragged };  // of the lanes of the last step

// `steps` steps over `lanes` lanes; `body(index, step)` is a lane's forward and backward.
template <class Body>
void run_steps(DataParallel& ddp, const torch::nn::Module& net, int lanes, int steps, LastWeights last,
               const Body& body) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const LaneRange range = lanes_of(ddp.group().rank(), ddp.group().size(), lanes);
  for (int step = 0; step < steps; ++step) {
    const bool ragged = last == LastWeights::ragged && step == steps - 1;
    for (int k = 0; k < range.count; ++k) {
      const int index = range.first + k;
      auto scope = ddp.lane({.seed = 1,
                             .step = step,
                             .index = index,
                             .weight = ragged ? index + 1.0 : 1.0,
                             .total_weight = ragged ? lanes * (lanes + 1) / 2.0 : lanes,
                             .first = k == 0,
                             .last = k == range.count - 1});
      body(index, step);
    }
    ddp.synchronize();
    optimizer.step();
    ddp.end_step();
  }
}

std::vector<torch::Tensor> train(int workers, int lanes, int steps, const std::string& algorithm = "") {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DataParallel ddp(net, group, {.bucket_cap_mb = 1e-4, .check_replicas_every = 2, .algorithm = algorithm});
    run_steps(ddp, *net, lanes, steps, LastWeights::ragged,
              [&](int index, int step) { net->forward(batch(index, step)).square().mean().backward(); });
    return copies(*net);
  });
}

TEST(DataParallel, LanesGiveTheSameBitsForEveryNumberOfWorkers) {
  for (const int lanes : {8, 5, 3}) {
    const auto alone = train(1, lanes, 4);
    for (int workers = 2; workers <= lanes; ++workers)
      EXPECT_TRUE(equal(train(workers, lanes, 4), alone)) << workers << " workers, " << lanes << " lanes";
  }
}

TEST(DataParallel, EveryCanonicalAlgorithmGivesTheSameBits) {
  const auto alone = train(1, 8, 3);
  for (const char* algorithm : {"direct", "tree", "halving-doubling", "pairwise", "eager"})
    for (const int workers : {2, 3, 8})
      EXPECT_TRUE(equal(train(workers, 8, 3, algorithm), alone))
          << algorithm << ", " << workers << " workers";
}

// Each lane in two halves, the first under no_sync(). `head` is used by the first half alone, in some lanes.
std::vector<torch::Tensor> train_in_halves(int workers, int lanes, int steps) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    auto net = std::make_shared<Net>();
    const torch::Tensor head = net->register_parameter("head", torch::full({6}, 0.5));
    DataParallel ddp(net, group, {.bucket_cap_mb = 1e-4, .check_replicas_every = 2});
    run_steps(ddp, *net, lanes, steps, LastWeights::equal, [&](int index, int step) {
      const auto halves = batch(index, step).chunk(2);
      {
        auto guard = ddp.no_sync();
        const torch::Tensor x = index % 2 == 0 ? halves[0] * head : halves[0];
        net->forward(x).square().mean().backward();
        EXPECT_TRUE(net->first->weight.grad().defined());
      }
      net->forward(halves[1]).square().mean().backward();
    });
    return copies(*net);
  });
}

TEST(DataParallel, LanesInPiecesGiveTheSameBitsForEveryNumberOfWorkers) {
  for (const int lanes : {8, 5, 3}) {
    const auto alone = train_in_halves(1, lanes, 4);
    for (int workers = 2; workers <= lanes; ++workers)
      EXPECT_TRUE(equal(train_in_halves(workers, lanes, 4), alone))
          << workers << " workers, " << lanes << " lanes";
  }
}

TEST(DataParallel, OneLaneInPiecesIsThePlainLoopBitForBit) {
  auto net = std::make_shared<Net>();
  const torch::Tensor head = net->register_parameter("head", torch::full({6}, 0.5));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const auto halves = batch(0, step).chunk(2);
    net->forward(halves[0] * head).square().mean().backward();
    net->forward(halves[1]).square().mean().backward();
    optimizer.step();
  }
  EXPECT_TRUE(equal(train_in_halves(1, 1, 4), copies(*net)));
}

// A lane all of whose backwards were under no_sync() counts like any other; its exchange comes later.
TEST(DataParallel, LanesWithoutABackwardThatExchanges) {
  const auto alone = train(1, 4, 3);
  std::vector<torch::Tensor> result;
  on_threads(thread_groups(2), [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DataParallel ddp(net, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      for (int k = 0; k < 2; ++k) {
        const int index = 2 * group.rank() + k;
        const bool ragged = step == 2;  // as train() does it
        auto scope = ddp.lane({.seed = 1,
                               .step = step,
                               .index = index,
                               .weight = ragged ? index + 1.0 : 1,
                               .total_weight = ragged ? 10.0 : 4,
                               .first = k == 0,
                               .last = k == 1});
        auto guard = ddp.no_sync();
        net->forward(batch(index, step)).square().mean().backward();
      }
      ddp.synchronize();
      optimizer.step();
      ddp.end_step();
    }
    if (group.rank() == 0) result = copies(*net);
  });
  EXPECT_TRUE(equal(result, alone));
}

// The other way round the second gradient would have nowhere to go: its lane has been added up.
TEST(DataParallel, ALaneGetsNothingMoreBehindItsBackwardWithExchange) {
  auto net = std::make_shared<Net>();
  DataParallel ddp(net, thread_groups(1)[0]);
  auto scope = ddp.lane({.weight = 1, .total_weight = 2, .first = true, .last = false});
  net->forward(batch(0, 0)).square().mean().backward();
  auto guard = ddp.no_sync();
  expect_error<UsageError>([&] { net->forward(batch(1, 0)).square().mean().backward(); },
                           {"twice", "of a lane", "no_sync() for all but the last"});
}

// The error of a gradient that can't travel leaves a lane as any other, and the step can be done again.
TEST(DataParallel, ASparseGradientInALaneIsAnError) {
  for (const bool in_pieces : {false, true}) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 3).sparse(true));
    DataParallel ddp(table, thread_groups(1)[0]);
    const LaneInfo only{.weight = 1, .total_weight = 1, .first = true, .last = true};
    const auto backward = [&] { table->forward(torch::tensor({1, 2})).sum().backward(); };
    expect_error<UsageError>(
        [&] {
          auto scope = ddp.lane(only);
          if (!in_pieces) return backward();
          auto guard = ddp.no_sync();
          backward();
        },
        {"'weight'", "sparse", "accepted: dense"});
    ddp.reset();
    {
      auto scope = ddp.lane(only);
      table->weight.sum().backward();
    }
    EXPECT_TRUE(table->weight.grad().equal(torch::ones({4, 3})));
  }
}

TEST(DataParallel, OneLaneIsThePlainLoopBitForBit) {
  auto net = std::make_shared<Net>();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    net->forward(batch(0, step)).square().mean().backward();
    optimizer.step();
  }
  EXPECT_TRUE(equal(train(1, 1, 4), copies(*net)));
}

TEST(DataParallel, LanesAreTheMeanOverTheirWeights) {
  auto net = std::make_shared<Net>();
  std::vector<torch::Tensor> expected;
  for (int lane = 0; lane < 3; ++lane) {
    auto twin = std::make_shared<Net>();
    (twin->forward(batch(lane, 0)).square().mean() * (lane + 1) / 6).backward();
    std::size_t i = 0;
    for (const auto& p : twin->parameters()) {
      if (lane == 0)
        expected.push_back(p.grad().clone());
      else
        expected[i].add_(p.grad());
      ++i;
    }
  }
  on_threads(thread_groups(2), [&](const Group& group) {
    auto own = std::make_shared<Net>();
    DataParallel ddp(own, group);
    const LaneRange range = lanes_of(group.rank(), 2, 3);
    for (int k = 0; k < range.count; ++k) {
      const int index = range.first + k;
      auto scope = ddp.lane({.index = index,
                             .weight = index + 1.0,
                             .total_weight = 6,
                             .first = k == 0,
                             .last = k == range.count - 1});
      own->forward(batch(index, 0)).square().mean().backward();
    }
    std::size_t i = 0;
    for (const auto& p : own->parameters()) EXPECT_TRUE(torch::allclose(p.grad(), expected[i++], 1e-5, 1e-7));
  });
}

TEST(DataParallel, WorkersStartFromRankZeroAndStayTogetherInAPlainLoop) {
  for (const int n : {1, 2, 4}) {
    on_threads(thread_groups(n), [&](const Group& group) {
      auto net = std::make_shared<Net>();
      {
        const torch::NoGradGuard no_grad;
        for (auto& p : net->parameters()) p.add_(static_cast<float>(group.rank()));
        net->norm->running_mean.add_(static_cast<float>(group.rank()));
      }
      DataParallel ddp(net, group);
      EXPECT_TRUE(equal(copies(*net), copies(Net())));
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        {
          auto guard = ddp.no_sync();
          net->forward(batch(group.rank(), step + 50)).square().mean().backward();
        }
        net->forward(batch(group.rank(), step)).square().mean().backward();
        optimizer.step();
      }
      ddp.check_replicas();
    });
  }
}

TEST(DataParallel, NamesTheFirstDifferenceBetweenModels) {
  std::atomic<int> named = 0;
  on_threads(thread_groups(3), [&](const Group& group) {
    auto net = std::make_shared<torch::nn::Module>();
    net->register_parameter("same", torch::zeros({2}));
    net->register_parameter("body", torch::zeros({group.rank() == 2 ? 5 : 4}));
    try {
      DataParallel ddp(net, group);
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      if (text.find("rank 0 has body Float [4]") != std::string::npos &&
          text.find("rank 2 has body Float [5]") != std::string::npos)
        ++named;
      else
        ADD_FAILURE() << text;
    }
  });
  EXPECT_EQ(named, 3);
}

TEST(DataParallel, SilentDivergenceIsFoundAndNamed) {
  std::atomic<int> named = 0;
  on_threads(thread_groups(2), [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DataParallel ddp(net, group, {.check_replicas_every = 3});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    try {
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        net->forward(batch(group.rank(), step)).square().mean().backward();
        optimizer.step();
        if (group.rank() == 1 && step == 1) {
          const torch::NoGradGuard no_grad;
          net->second->bias[1] += 1e-6f;
        }
        ddp.end_step();
      }
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("'second.bias' on rank 1"), std::string::npos) << error.what();
      ++named;
    }
  });
  EXPECT_EQ(named, 2);
}

TEST(DataParallel, FrozenAndTiedParametersKeepTheirMeaning) {
  on_threads(thread_groups(2), [&](const Group& group) {
    auto net = std::make_shared<torch::nn::Module>();
    auto weight = net->register_parameter("weight", torch::ones({2, 2}));
    net->register_parameter("tied", weight);
    auto frozen =
        net->register_parameter("frozen", torch::full({2}, static_cast<float>(group.rank())), false);
    DataParallel ddp(net, group);
    EXPECT_EQ(ddp.parameters().size(), 1u);
    EXPECT_TRUE(torch::equal(frozen, torch::zeros({2})));  // rank 0's all the same
    (torch::mm(weight, weight).sum() * static_cast<float>(group.rank() + 1) + frozen.sum()).backward();
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({2, 2}, 4 * 1.5f)));
    EXPECT_FALSE(frozen.grad().defined());
  });
}

// As after a loss scaler: gradients that 16 bits hold, and of which equal lanes have no trouble either.
TEST(DataParallel, SixteenBitGradientsOfUnequalLanesStayFinite) {
  struct Half : torch::nn::Module {
    torch::Tensor weight = register_parameter("weight", torch::zeros({4}, torch::kFloat16));
  };
  const Group group = thread_groups(1)[0];
  auto module = std::make_shared<Half>();
  DataParallel ddp(module, group);
  for (const bool first : {true, false}) {
    auto scope =
        ddp.lane({.weight = first ? 200.0 : 56.0, .total_weight = 256, .first = first, .last = !first});
    (module->weight.to(torch::kFloat32).sum() * 4096).backward();
  }
  EXPECT_TRUE(torch::equal(module->weight.grad(), torch::full({4}, 4096, torch::kFloat16)))
      << module->weight.grad();
}

TEST(DataParallel, ALaneCallsBackwardOnce) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<Net>();
  DataParallel ddp(net, group);
  auto scope = ddp.lane({.first = true, .last = false});
  net->forward(batch(0, 0)).square().mean().backward();
  EXPECT_THROW(net->forward(batch(0, 0)).square().mean().backward(), UsageError);
  ddp.reset();
}

TEST(DataParallel, BucketSizesAreTakenAsGivenOrChosen) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<Net>();
  EXPECT_EQ(DataParallel(net, group, {.bucket_cap_mb = 3}).bucket_cap_mb(), 3);
  EXPECT_EQ(DataParallel(net, group).bucket_cap_mb(), 25);
}

TEST(DataParallel, BadOptionsAreNamed) {
  const Group group = thread_groups(1)[0];
  auto net = std::make_shared<Net>();
  EXPECT_THROW(DataParallel(net, group, {.bucket_cap_mb = -1}), UsageError);
  EXPECT_THROW(DataParallel(net, group, {.check_replicas_every = -1}), UsageError);
  EXPECT_THROW(DataParallel(std::shared_ptr<Net>(), group), UsageError);
  DataParallel ddp(net, group);
  EXPECT_THROW((void)ddp.lane({.weight = -1}), UsageError);
  EXPECT_THROW((void)ddp.lane({.weight = NAN}), UsageError);
  EXPECT_THROW((void)ddp.lane({.weight = 2, .total_weight = 1}), UsageError);
}

// Sums of several threads have other bits: who differs is said once, in one line.
TEST(DataParallel, RanksWithDifferentNumbersOfThreadsAreNamed) {
  const int before = at::get_num_threads();
  for (const bool differ : {false, true}) {
    ::testing::internal::CaptureStderr();
    on_threads(thread_groups(3), [&](const Group& group) {
      (void)at::get_num_threads();  // which a thread's first call would set
      group.barrier();
      at::set_num_threads(differ && group.rank() == 1 ? 2 : 1);  // this thread's
      const auto net = std::make_shared<Net>();
      const DataParallel ddp(net, group);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), differ ? 1 : 0) << said;
    EXPECT_EQ(said.find("rank 0 computes with 1 threads, rank 1 with 2") != std::string::npos, differ)
        << said;
  }
  at::set_num_threads(before);  // or threads to come would have what the last rank has set
}

}  // namespace
}  // namespace lockstep
