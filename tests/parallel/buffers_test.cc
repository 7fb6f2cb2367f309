// What becomes of a module's buffers, of every type. Threads as ranks.
#include "parallel/buffers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

// libtorch makes its default generator when it is first asked for, in code that the thread sanitizer does not
// see: before there are threads, so that it is not taken for a race.
[[maybe_unused]] const bool kGeneratorIsMade = at::detail::getDefaultCPUGenerator().defined();

using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

// One parameter, and buffers that a test sets by hand.
struct Holder : torch::nn::Module {
  explicit Holder(const torch::Tensor& start) {
    weight = register_parameter("weight", torch::ones({2}));
    state = register_buffer("state", start.clone());
  }
  torch::Tensor weight;
  torch::Tensor state;
};

LaneInfo lane_of(int rank, int lanes, double weight = 1, double total = 0) {
  return {.index = rank, .weight = weight, .total_weight = total == 0 ? lanes : total};
}

// As a checkpoint's loading may do. A view of the old memory would be averaged in its place.
TEST(Buffers, AComplexOneThatWasGivenOtherMemoryIsAveragedToo) {
  on_threads(thread_groups(2), [](const Group& group) {
    Holder holder(torch::zeros({3}, torch::kComplexFloat));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group, {.check_replicas_every = 0});
    holder.state.set_data(torch::zeros({3}, torch::kComplexFloat));
    const auto rank = static_cast<float>(group.rank());
    holder.state.fill_(c10::complex<float>(rank, 4));
    holder.weight.sum().backward();
    const torch::Tensor mean = torch::full({3}, c10::complex<float>(0.5F, 4), torch::kComplexFloat);
    EXPECT_TRUE(torch::equal(holder.state, mean));
    // And a step that is given up finds it again.
    holder.state.set_data(torch::full({3}, c10::complex<float>(7, rank), torch::kComplexFloat));
    {
      auto scope = ddp.lane(lane_of(group.rank(), 2));
      holder.state.fill_(c10::complex<float>(8, 8));
      ddp.reset();
    }
    EXPECT_TRUE(
        torch::equal(holder.state, torch::full({3}, c10::complex<float>(7, rank), torch::kComplexFloat)));
  });
}

// Its version does not tell of it.
TEST(Buffers, ARealOneThatWasGivenOtherMemoryIsNotPutBack) {
  on_threads(thread_groups(2), [](const Group& group) {
    Holder holder(torch::zeros({3}));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
    for (const float loaded : {7.0F, 8.0F}) {
      holder.state.set_data(torch::full({3}, loaded));
      if (loaded == 7.0F)
        ddp.reset();
      else
        ddp.synchronize();  // nobody has a gradient
      EXPECT_TRUE(torch::equal(holder.state, torch::full({3}, loaded)));
    }
  });
}

// What reset() itself writes is no program's doing.
TEST(Buffers, AStepWithoutGradientsIsUndoneBehindOneOfLanesThatWasGivenUp) {
  for (const int n : {1, 2})
    on_threads(thread_groups(n), [](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, group);
      {
        auto scope = ddp.lane(lane_of(group.rank(), group.size()));
        net->forward(small_batch(group.rank(), 0));
      }
      ddp.reset();
      const std::vector<torch::Tensor> before = copies(*net);
      net->forward(small_batch(group.rank(), 1));
      ddp.synchronize();  // nobody has a gradient
      EXPECT_TRUE(equal(copies(*net), before));
    });
}

// The mean of what lanes summed up before goes to where the buffer lies then.
TEST(Buffers, AComplexOneThatWasGivenOtherMemoryBehindItsLastCountedLaneGetsTheAverage) {
  on_threads(thread_groups(2), [](const Group& group) {
    Holder holder(torch::zeros({3}, torch::kComplexFloat));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group, {.check_replicas_every = 0});
    const auto rank = static_cast<float>(group.rank());
    for (int position = 0; position < 2; ++position) {
      auto scope = ddp.lane({.index = 2 * group.rank() + position,
                             .total_weight = 4,
                             .first = position == 0,
                             .last = position == 1,
                             .position = position});
      if (position == 0) {
        holder.state.fill_(c10::complex<float>(rank, 4));
        holder.weight.sum().backward();
      } else {
        holder.state.set_data(torch::zeros({3}, torch::kComplexFloat));
      }
    }
    ddp.synchronize();
    EXPECT_TRUE(
        torch::equal(holder.state, torch::full({3}, c10::complex<float>(0.5F, 4), torch::kComplexFloat)));
  });
}

TEST(Buffers, AnAverageOfEqualNumbersIsThatNumber) {
  for (const auto type : {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kComplexDouble})
    for (const int n : {3, 5, 7})
      on_threads(thread_groups(n), [&](const Group& group) {
        const torch::Tensor start = torch::zeros({6}, type);
        Holder holder(start);
        DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
        const torch::Tensor value = (torch::arange(1, 7).to(torch::kFloat64) / 10).to(type);
        {
          auto scope = ddp.lane(lane_of(group.rank(), n, 1.1, 1.1 * n));
          holder.state.copy_(value);
          holder.weight.sum().backward();
        }
        EXPECT_TRUE(torch::equal(holder.state, value)) << n << " lanes of " << torch::toString(type);
      });
}

// A checkpoint is loaded into the model behind the wrapping; the first step after it fails.
TEST(Buffers, ResetLeavesWhatWasLoadedAfterWrapping) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Holder holder(torch::zeros({2}));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
    {
      const torch::NoGradGuard no_grad;
      holder.weight.fill_(7);
      holder.state.fill_(7);
    }
    ddp.reset();
    EXPECT_TRUE(torch::equal(holder.state, torch::full({2}, 7.0f)));
  });
}

// What a failed step leaves under way still writes into memory that the next step uses.
TEST(Buffers, AbandonWaitsForWhatIsUnderWay) {
  std::atomic<bool> abandoning = false, other_came = false;
  on_threads(thread_groups(2), [&](const Group& group) {
    Holder holder(torch::zeros({2}));
    BufferAverager averager(holder, group);
    if (group.rank() == 1) {
      abandoning.wait(false);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // in which one that does not wait returns
      other_came = true;
    }
    averager.exchange_plain(true);
    if (group.rank() == 0) {
      abandoning = true;
      abandoning.notify_all();
    }
    averager.abandon();
    EXPECT_TRUE(other_came);
    averager.exchange_plain(true);  // nothing is left of the one before
    averager.finish();
  });
}

TEST(Buffers, ComplexOnesAreAveraged) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Holder holder(torch::zeros({3}, torch::kComplexFloat));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
    holder.state.fill_(c10::complex<float>(static_cast<float>(group.rank()), 4));
    holder.weight.sum().backward();
    EXPECT_TRUE(
        torch::equal(holder.state, torch::full({3}, c10::complex<float>(0.5f, 4), torch::kComplexFloat)));
  });
}

// Its lane has ended when that is found out; the step does not go on as if nothing had been.
TEST(Buffers, OneThatGrowsIsAnErrorOfTheStep) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Holder holder(torch::zeros({2}));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
    {
      auto scope = ddp.lane({.index = 2 * group.rank(), .total_weight = 4, .last = false});
      holder.state.resize_({4});
      holder.weight.sum().backward();
    }
    EXPECT_THROW((void)ddp.lane({.index = 2 * group.rank() + 1, .total_weight = 4, .first = false}),
                 c10::Error);
    EXPECT_THROW(ddp.synchronize(), c10::Error);
  });
}

TEST(Buffers, AreAveragedByTheWeightOfLanes) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Holder holder(torch::zeros({2}));
    DataParallel ddp(std::shared_ptr<Holder>(&holder, [](Holder*) {}), group);
    auto scope = ddp.lane(lane_of(group.rank(), 2, group.rank() == 0 ? 1 : 3, 4));
    holder.state.fill_(group.rank() == 0 ? 8 : 4);
    holder.weight.sum().backward();
    EXPECT_TRUE(torch::equal(holder.state, torch::full({2}, 5.0f)));
  });
}

// Beside batch norm's statistics, a mean that the model keeps itself, in place.
struct Observing : SmallNet {
  torch::Tensor seen = register_buffer("seen", torch::zeros({2}));
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      seen.mul_(0.5).add_(x.mean());
    }
    return SmallNet::forward(x);
  }
};

// A step that is void in a plain loop, in which the last worker has run no forward; and one in lanes.
TEST(Buffers, AStepThatIsVoidLeavesThemAlikeOnAllWorkers) {
  for (const int n : {1, 2, 3})
    on_threads(thread_groups(n, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      auto net = std::make_shared<Observing>();
      DataParallel ddp(net, group, {.check_replicas_every = 1});
      SGD optimizer(ddp, {.lr = 0.1});
      GradScaler scaler(optimizer, {.init_scale = 1});
      const bool idles = n == 3 && group.rank() == 2;
      const auto loss_of = [&](int step) {
        const float factor = step == 1 ? std::numeric_limits<float>::infinity() : 1;
        return net->forward(small_batch(group.rank(), step)).square().mean() * factor;
      };
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor mean = net->norm->running_mean.clone();
        if (step != 1 || !idles) loss_of(step).backward();
        EXPECT_EQ(scaler.step(), step != 1);
        EXPECT_EQ(torch::equal(net->norm->running_mean, mean), step == 1);
        ddp.check_replicas();
      }
      const auto before = copies(*net);
      if (!idles) {
        auto scope = ddp.lane(lane_of(group.rank(), n));
        loss_of(1).backward();
      }
      EXPECT_FALSE(scaler.step());
      EXPECT_TRUE(equal(copies(*net), before));
      ddp.check_replicas();
    });
}

TEST(Buffers, ResetBringsTheStepsBeginningBack) {
  for (const int n : {1, 2})
    on_threads(thread_groups(n), [&](const Group& group) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, group);
      const auto step = [&](int number) {
        auto scope =
            ddp.lane({.step = number, .index = group.rank(), .total_weight = static_cast<double>(n)});
        net->forward(small_batch(group.rank(), number)).square().mean().backward();
      };
      step(0);
      ddp.end_step();
      const auto before = copies(*net);
      {  // broken after its forward
        auto scope = ddp.lane({.step = 1, .index = group.rank(), .total_weight = static_cast<double>(n)});
        (void)net->forward(small_batch(group.rank(), 7));
      }
      EXPECT_FALSE(equal(copies(*net), before));
      ddp.reset();
      EXPECT_TRUE(equal(copies(*net), before));
      // A plain loop
      net->forward(small_batch(group.rank(), 2)).square().mean().backward();
      const auto plain = copies(*net);
      (void)net->forward(small_batch(group.rank(), 3));
      EXPECT_FALSE(equal(copies(*net), plain));
      ddp.reset();
      EXPECT_TRUE(equal(copies(*net), plain));
    });
}

}  // namespace
}  // namespace lockstep
