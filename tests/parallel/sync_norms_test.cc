// Models with SyncBatchNorm: under a strategy, in loops over lanes, and made of models with BatchNorm.
// Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "parallel/norm_values.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_close;
using lockstep::testing::expect_error;
using lockstep::testing::numbers;
using lockstep::testing::on_threads;
using lockstep::testing::SmallExamples;

using torch::nn::Linear;

// Two norms, and a head that only some ranks use.
template <class Norm>
struct Net : torch::nn::Module {
  Net() {
    norm1 = register_module("norm1", Norm(8));
    norm2 = register_module("norm2", Norm(8));
    to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    double phase = 0.1;
    for (auto& p : parameters()) p.copy_(numbers(p.sizes().vec(), phase += 0.1, torch::kFloat64) / 4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h =
        torch::tanh(norm2->forward(second->forward(torch::tanh(norm1->forward(first->forward(x))))));
    return third->forward(h).mean(1);  // a number a sample
  }
  Linear first = register_module("first", Linear(6, 8));
  Linear second = register_module("second", Linear(8, 8));
  Linear third = register_module("third", Linear(8, 3));
  Linear head = register_module("head", Linear(6, 1));
  Norm norm1{nullptr}, norm2{nullptr};
};

// A sample's loss is its output squared; a lane's is their mean, and the step's is that by the lanes'
// weights.
struct LanePlan {
  std::int64_t rows;
  double weight;
};

torch::Tensor rows_of(std::int64_t first, std::int64_t count, int step) {
  return numbers({32, 6}, 0.2 + step, torch::kFloat64).narrow(0, first, count);
}

void compare_training(const std::vector<LanePlan>& lanes, const std::string& strategy) {
  constexpr int kSteps = 3;
  constexpr double kRate = 0.1;
  double total = 0;
  for (const LanePlan& lane : lanes) total += lane.weight;
  Net<torch::nn::BatchNorm1d> alone;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<torch::Tensor> x, by;
    std::int64_t first = 0;
    for (const LanePlan& lane : lanes) {
      const auto rows = rows_of(first, lane.rows, step);
      first += lane.rows;
      if (lane.weight == 0) continue;
      x.push_back(rows);
      by.push_back(
          torch::full({lane.rows}, lane.weight / total / static_cast<double>(lane.rows), torch::kFloat64));
    }
    alone.zero_grad();
    (alone.forward(torch::cat(x)).square() * torch::cat(by)).sum().backward();
    const torch::NoGradGuard no_grad;
    for (auto& p : alone.parameters())
      if (p.grad().defined()) p.sub_(kRate * p.grad());
  }
  on_threads(thread_groups(static_cast<int>(lanes.size())), [&](const Group& group) {
    Net<SyncBatchNorm> net;
    const auto shared = make_strategy(strategy, net, group,
                                      {.bucket_cap_mb = 0.0003, .first_bucket_mb = 0.0003});  // many buckets
    SGD optimizer(*shared, {.lr = kRate});
    const auto rank = static_cast<std::size_t>(group.rank());
    std::int64_t first = 0;
    for (std::size_t r = 0; r < rank; ++r) first += lanes[r].rows;
    const LanePlan& own = lanes[rank];
    for (int step = 0; step < kSteps; ++step) {
      {
        const auto scope =
            shared->lane({.step = step, .index = group.rank(), .weight = own.weight, .total_weight = total});
        const auto losses = net.forward(rows_of(first, own.rows, step)).square();
        auto loss = own.weight == 0 ? losses.sum() * NAN : losses.mean();
        // Ranks whose hooks come in another order.
        if (group.rank() == 1) loss = loss + 0 * net.head->forward(rows_of(0, 1, step)).sum();
        loss.backward();
      }
      optimizer.step();
    }
    shared->check_replicas();
    const auto found = net.named_parameters(), expected = alone.named_parameters();
    for (const auto& entry : expected) expect_close(found[entry.key()], entry.value(), 1e-10, entry.key());
    for (const auto& entry : alone.named_buffers())
      expect_close(net.named_buffers()[entry.key()], entry.value(), 1e-10, entry.key());
  });
}

TEST(SyncBatchNorm, TrainsAsOneProcessOnTheJoinedBatch) {
  for (const char* const strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    compare_training({{4, 1}, {4, 1}}, strategy);
    compare_training({{5, 5}, {1, 1}, {2, 2}}, strategy);            // every sample weighs alike
    compare_training({{3, 0.5}, {4, 7}, {2, 1}, {3, 2}}, strategy);  // tokens
    compare_training({{3, 2}, {2, 0}, {4, 1}}, strategy);  // a lane that counts for nothing, and is NaN
  }
}

TEST(SyncBatchNorm, ALoopOverLanesHasOneOnEveryWorker) {
  const auto examples = std::make_shared<SmallExamples>(12);
  const auto go_through = [&](const Group& group, const LoaderOptions& options, bool training) {
    auto net = std::make_shared<torch::nn::SequentialImpl>(Linear(6, 8), SyncBatchNorm(8), Linear(8, 3));
    net->train(training);
    DataParallel ddp(net, group);
    SGD optimizer(ddp, {.lr = 0.1});
    for (auto& step : loader(examples, group, options)) {
      for (auto& lane : step) {
        const auto scope = ddp.lane(lane);
        const auto loss = net->forward(lane.data).square().mean();
        if (training) loss.backward();
      }
      if (training) optimizer.step();
    }
  };
  for (const int workers : {2, 3})
    on_threads(thread_groups(workers), [&](const Group& group) {
      go_through(group, {.lane_batch = 2}, true);
      const LoaderOptions twice{.lanes = 2 * group.size(), .lane_batch = 2};
      const LoaderOptions without{.lane_batch = group.size() == 2 ? 5 : 3, .last_step = LastStep::short_};
      for (const LoaderOptions& refused : {twice, without}) {
        const bool ends = refused.lanes == 0;
        expect_error<UsageError>([&] { go_through(group, refused, true); },
                                 {ends ? "no lane" : "lanes", "SyncBatchNorm", "one lane on every worker"});
        go_through(group, refused, false);  // in evaluation nobody is asked
      }
    });
  // By hand, without a loader.
  SyncBatchNorm norm(8);
  DataParallel ddp(norm, thread_groups(1)[0]);
  expect_error<UsageError>([&] { (void)ddp.lane({.step = 3, .index = 1, .total_weight = 2, .last = false}); },
                           {"lane 1 of step 3", "SyncBatchNorm"});
}

TEST(SyncBatchNorm, FollowsItsModelIntoAnotherGroup) {
  const std::vector<Group> later = thread_groups(2);
  on_threads(thread_groups(3), [&](const Group& group) {
    Net<SyncBatchNorm> net;
    DataParallel ddp(net, group);
    net.forward(rows_of(2 * group.rank(), 2, 0)).sum().backward();
    EXPECT_EQ(net.norm1->group().size(), 3);
    if (group.rank() == 2) return;
    ddp.rebind(later[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(net.norm1->group().size(), 2);
    net.zero_grad();
    net.forward(rows_of(2 * group.rank(), 2, 0)).sum().backward();
  });
}

TEST(SyncBatchNorm, GoesWithTheModelsNextStrategy) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Net<SyncBatchNorm> net;
    { const DataParallel alone(net, thread_groups(1)[0]); }
    EXPECT_FALSE(net.norm1->group());
    const DataParallel ddp(net, group);
    EXPECT_EQ(net.norm1->group().size(), 2);
  });
}

TEST(SyncBatchNorm, AStepThatIsForgottenLeavesNoStatistics) {
  on_threads(thread_groups(2), [&](const Group& group) {
    Net<SyncBatchNorm> net;
    DataParallel ddp(net, group);
    const torch::Tensor mean = net.norm1->running_mean.clone();
    net.forward(rows_of(2 * group.rank(), 2, 0));
    EXPECT_FALSE(torch::equal(net.norm1->running_mean, mean));
    ddp.reset();
    EXPECT_TRUE(torch::equal(net.norm1->running_mean, mean));
  });
}

// A Sequential inside another one needs a module around it.
struct Rest : torch::nn::Module {
  torch::nn::Sequential inner =
      register_module("inner", torch::nn::Sequential(torch::nn::ReLU(), torch::nn::BatchNorm1d(8)));
  torch::Tensor forward(const torch::Tensor& x) { return inner->forward(x); }
};

torch::nn::Sequential make_sequential() {
  torch::manual_seed(1);
  torch::nn::Sequential made({{"in", torch::nn::AnyModule(Linear(6, 8))},
                              {"norm", torch::nn::AnyModule(torch::nn::BatchNorm1d(8))},
                              {"rest", torch::nn::AnyModule(std::make_shared<Rest>())}});
  made->to(torch::kFloat64);
  return made;
}

TEST(ConvertSyncBatchNorm, ReplacesWhatASequentialHolds) {
  torch::nn::Sequential plain = make_sequential();
  const torch::Tensor x = rows_of(0, 8, 0);
  const torch::Tensor expected = plain->forward(x);
  std::vector<torch::nn::Sequential> models{make_sequential(), make_sequential()};  // one generator for all
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Sequential& model = models[static_cast<std::size_t>(group.rank())];
    const auto before = model->named_parameters();
    EXPECT_EQ(convert_sync_batchnorm(model, group), 2);
    EXPECT_EQ(model->named_buffers().keys(), plain->named_buffers().keys());
    EXPECT_EQ(model->named_parameters().keys(), before.keys());
    for (const auto& entry : model->named_parameters())  // an optimizer still has them
      EXPECT_TRUE(entry.value().is_same(before[entry.key()])) << entry.key();
    const std::int64_t first = 4 * group.rank();
    expect_close(model->forward(x.narrow(0, first, 4)), expected.narrow(0, first, 4), 1e-10, "outputs");
    for (const auto& entry : plain->named_buffers())
      expect_close(model->named_buffers()[entry.key()], entry.value(), 1e-10, entry.key());
    EXPECT_EQ(convert_sync_batchnorm(model, group), 0);
  });
}

// Without a group: a strategy gives them one.
TEST(ConvertSyncBatchNorm, LeavesTheGroupToTheStrategy) {
  torch::nn::Sequential model = make_sequential();
  EXPECT_EQ(convert_sync_batchnorm(model), 2);
  expect_error<UsageError>([&] { model->forward(rows_of(0, 8, 0)); }, {"SyncBatchNorm 'norm'", "no group"});
  const DataParallel ddp(model, thread_groups(1)[0]);
  EXPECT_TRUE(torch::equal(model->forward(rows_of(0, 8, 0)), make_sequential()->forward(rows_of(0, 8, 0))));
}

// Two branches of one module: its norm has two names, and nobody else holds it.
TEST(ConvertSyncBatchNorm, ASequentialMayHaveSeveralPlaces) {
  const auto rest = std::make_shared<Rest>();
  torch::nn::Sequential model({{"here", torch::nn::AnyModule(rest)}, {"there", torch::nn::AnyModule(rest)}});
  EXPECT_EQ(convert_sync_batchnorm(model), 1);
  EXPECT_NE(rest->inner->ptr(1)->as<SyncBatchNormImpl>(), nullptr);
  EXPECT_EQ(convert_sync_batchnorm(model), 0);
  const DataParallel ddp(model, thread_groups(1)[0]);
  EXPECT_EQ(model->forward(torch::ones({4, 8})).size(0), 4);
}

TEST(ConvertSyncBatchNorm, RefusesWhatItCannotReach) {
  testing::SmallNet member;
  expect_error<UsageError>([&] { convert_sync_batchnorm(member); },
                           {"'norm'", "member", "lockstep::SyncBatchNorm in its place"});
  torch::nn::BatchNorm1d kept(8);
  torch::nn::Sequential model(torch::nn::BatchNorm1d(8), kept);
  expect_error<UsageError>([&] { convert_sync_batchnorm(model); }, {"'1'", "something else"});
  EXPECT_NE(model->ptr(0)->as<torch::nn::BatchNorm1dImpl>(), nullptr) << "nothing is changed";
  expect_error<UsageError>([&] { convert_sync_batchnorm(kept); }, {"itself"});
}

}  // namespace
}  // namespace lockstep
