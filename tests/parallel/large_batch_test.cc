// What large batches need, on any number of workers: norms over whole parameters, clipping, and lanes that
// are added up before anything is sent. Threads as ranks.
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/observe/flight_dump.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

// Weights of many blocks, and of a few elements; f64; channels last; one that only some lanes use.
struct LargeNet : SmallNet {
  torch::nn::Linear wide{nullptr};
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor exact, now_and_then;
  LargeNet() {
    wide = register_module("wide", torch::nn::Linear(6, 901));
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 25, 3).padding(1)));
    exact = register_parameter("exact", torch::linspace(-1, 1, 1300, torch::kFloat64).view({26, 50}));
    now_and_then = register_parameter("now_and_then", torch::ones({40, 30}));
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    float x = 0.1f;
    for (auto& p : parameters()) {
      p.copy_(torch::linspace(-x, x + 0.05f, p.numel()).view(p.sizes()));
      x += 0.05f;
    }
  }
  torch::Tensor loss(int lane, int step) {
    const torch::Tensor x = small_batch(lane, step);
    const torch::Tensor image = x.repeat({1, 8}).view({4, 3, 4, 4});
    torch::Tensor sum = SmallNet::forward(x).square().mean() + wide(x).square().mean() +
                        conv(image).square().mean() + (exact * (lane + 1)).sin().mean().to(torch::kFloat32);
    if (lane % 3 == 1 && step % 2 == 0) sum = sum + now_and_then.square().mean();
    return sum;
  }
};

constexpr int kLanes = 8;

// Calls before(lane) ahead of each.
void train_lanes(const Group& group, int step, LargeNet& net, Strategy& strategy,
                 const std::function<void(const LaneInfo&)>& before = {}) {
  const LaneRange mine = lanes_of(group.rank(), group.size(), kLanes);
  for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
    const LaneInfo info = {.seed = 3,
                           .step = step,
                           .index = lane,
                           .weight = 1,
                           .total_weight = kLanes,
                           .first = lane == mine.first,
                           .last = lane + 1 == mine.first + mine.count};
    if (before) before(info);
    const auto scope = strategy.lane(info);
    net.loss(lane, step).backward();
  }
}

// Several buckets, cut inside parameters and inside blocks.
StrategyOptions some_buckets() {
  return {.bucket_cap_mb = 1e-2, .first_bucket_mb = 2e-3, .check_replicas_every = 1};
}

enum class ClipBy { none, norm, value };

template <class Optimizer>
std::vector<torch::Tensor> trained(const std::string& strategy, int workers, ClipBy clip = ClipBy::none) {
  return alike_on(thread_groups(workers), [&](const Group& group) {
    LargeNet net;
    const auto model = make_strategy(strategy, net, group, some_buckets());
    Optimizer optimizer(*model, {.lr = 0.05});
    double norms = 0;
    for (int step = 0; step < 4; ++step) {
      train_lanes(group, step, net, *model);
      if (clip == ClipBy::norm) norms += clip_grad_norm_(*model, 0.05);
      if (clip == ClipBy::value) clip_grad_value_(*model, 1e-3);
      optimizer.step();
    }
    std::vector<torch::Tensor> all = copies(net);
    all.push_back(torch::scalar_tensor(norms, torch::kFloat64));
    return all;
  });
}

template <class Optimizer>
void expect_same_bits() {
  const auto expected = trained<Optimizer>("ddp", 1);
  for (const int workers : {2, 4, 8})
    EXPECT_TRUE(equal(trained<Optimizer>("ddp", workers), expected)) << "ddp, " << workers;
  for (const int workers : {1, 2, 3, 4, 7, 8})
    EXPECT_TRUE(equal(trained<Optimizer>("zero1", workers), expected)) << "zero1, " << workers;
  for (const char* const strategy : {"zero2", "zero3"})
    EXPECT_TRUE(equal(trained<Optimizer>(strategy, 4), expected)) << strategy;
}

TEST(LargeBatch, LarsHasTheSameBitsOnAnyNumberOfWorkers) { expect_same_bits<LARS>(); }

TEST(LargeBatch, LambHasTheSameBitsOnAnyNumberOfWorkers) { expect_same_bits<LAMB>(); }

TEST(LargeBatch, ClippingHasTheSameBitsOnAnyNumberOfWorkers) {
  const auto plain = trained<SGD>("ddp", 1);
  for (const ClipBy clip : {ClipBy::norm, ClipBy::value}) {
    const auto expected = trained<SGD>("ddp", 1, clip);
    EXPECT_FALSE(equal(expected, plain));
    for (const int workers : {2, 3})
      EXPECT_TRUE(equal(trained<SGD>("zero1", workers, clip), expected)) << workers;
    EXPECT_TRUE(equal(trained<SGD>("ddp", 4, clip), expected));
  }
}

TEST(LargeBatch, ClipsEachValue) {
  const Group alone = thread_groups(1)[0];
  SmallNet net;
  DataParallel ddp(net, alone);
  net.forward(small_batch(0, 0)).square().mean().backward();
  const torch::Tensor g = net.second->weight.grad();
  const torch::Tensor expected = g.clone().clamp(-0.01, 0.01);
  ASSERT_FALSE(torch::equal(g, expected));
  clip_grad_value_(ddp, 0.01);
  EXPECT_TRUE(torch::equal(net.second->weight.grad(), expected));
  net.second->weight.mutable_grad().flatten()[1] = std::nan("");
  clip_grad_value_(ddp, 0.01);
  EXPECT_EQ(net.second->weight.grad().isnan().sum().item<int>(), 1) << "nothing is hidden";
  EXPECT_THROW(clip_grad_value_(ddp, -1), UsageError);
  EXPECT_THROW(clip_grad_value_(ddp, std::nan("")), UsageError);
}

// A folder for dumps while it lives; no other thread runs when it begins and ends.
class RecorderFolder {
 public:
  RecorderFolder() { ::setenv("LOCKSTEP_DUMP_DIR", path.c_str(), 1); }
  ~RecorderFolder() {
    ::unsetenv("LOCKSTEP_DUMP_DIR");
    std::filesystem::remove_all(path);
  }
  RecorderFolder(const RecorderFolder&) = delete;
  RecorderFolder& operator=(const RecorderFolder&) = delete;

  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("lockstep-lanes-" + std::to_string(::getpid()));
};

// Lanes that one worker carries are accumulated gradients: nothing is sent before the last of them. Two ranks
// that then disagree leave what their flight recorders hold.
TEST(LargeBatch, OnlyTheLastLaneCommunicates) {
  const RecorderFolder folder;
  struct Times {
    std::int64_t begin_ns = 0, last_lane_ns = 0, end_ns = 0;
    std::size_t buckets = 0;
  };
  std::vector<Times> times(2);
  on_threads(thread_groups(2), [&](const Group& group) {
    LargeNet net;
    DataParallel ddp(net, group, some_buckets());
    SGD optimizer(ddp, {.lr = 0.05});
    Times& mine = times[static_cast<std::size_t>(group.rank())];
    for (int step = 0; step < 2; ++step) {  // the second is looked at
      mine.begin_ns = now_ns();
      train_lanes(group, step, net, ddp, [&](const LaneInfo& lane) {
        if (lane.last) mine.last_lane_ns = now_ns();
      });
      optimizer.step();
      mine.end_ns = now_ns();
    }
    mine.buckets = ddp.last_exchange().buckets.size();
    std::vector<float> x(1 + static_cast<std::size_t>(group.rank()));
    EXPECT_THROW(group.all_reduce(x), MismatchError);
  });
  for (int rank = 0; rank < 2; ++rank) {
    const Times& mine = times[static_cast<std::size_t>(rank)];
    const FlightDump dump = read_flight_dump(folder.path / flight_dump_name("world", rank));
    std::size_t early = 0, of_buckets = 0;
    for (const FlightRank& of : dump.ranks)
      for (const FlightEntry& entry : of.entries) {
        if (of.rank != rank || entry.begin_ns < mine.begin_ns || entry.begin_ns > mine.end_ns) continue;
        if (entry.begin_ns < mine.last_lane_ns)
          ++early;
        else if (entry.detail.starts_with("f32") || entry.detail.starts_with("f64"))
          of_buckets += entry.what == "all_reduce";
      }
    EXPECT_EQ(early, 0U) << "rank " << rank;
    EXPECT_GT(mine.buckets, 2U);
    EXPECT_GE(of_buckets, mine.buckets) << "rank " << rank;
  }
}

// Eight lanes accumulated by one worker, and one lane on each of eight.
TEST(LargeBatch, AccumulatedLanesAreThoseOfManyWorkers) {
  EXPECT_TRUE(equal(trained<SGD>("ddp", 1), trained<SGD>("ddp", 8)));
}

}  // namespace
}  // namespace lockstep
