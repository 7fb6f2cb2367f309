// Parameters of f16 and bf16: their gradients add up along one tree of lanes, every sum rounded, so that
// training has the same bits on any number of workers, under any strategy and over any engine.
#include <gtest/gtest.h>

#include <map>

#include "comm/wire_ranks.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/grad/reducer.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::node_groups;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::tcp_groups;

using Tensors = std::vector<torch::Tensor>;

constexpr int kHalfLanes = 8;
constexpr int kWorkers[] = {1, 2, 3, 4, 7, 8};
// None but the first fits into bf16's eight bits: a weight that is rounded itself shows.
double weight_of(int lane) { return 256 + 13 * lane; }
constexpr double kTotalWeight = 2412;  // of all lanes

// f(lane, whether it is the worker's first, whether its last) for each lane of this worker.
template <class F>
void for_own_lanes(const Group& group, F&& f) {
  const LaneRange mine = lanes_of(group.rank(), group.size(), kHalfLanes);
  for (int k = 0; k < mine.count; ++k) f(mine.first + k, k == 0, k + 1 == mine.count);
}

// Of very different sizes, both signs.
torch::Tensor gradient_of(int lane) {
  const torch::Tensor i = torch::arange(1000, torch::kFloat32);
  return torch::sin(i * (0.37f * static_cast<float>(lane + 1))) * torch::exp(torch::fmod(i + lane, 9));
}

torch::Tensor wide(const torch::Tensor& x) { return x.to(torch::kFloat32); }

// The canonical tree of tensors.
torch::Tensor tree(std::span<const torch::Tensor> x,
                   const std::function<torch::Tensor(torch::Tensor)>& node) {
  if (x.size() == 1) return x[0];
  return node(tree(x.first(x.size() / 2), node) + tree(x.subspan(x.size() / 2), node));
}

TEST(Halves, ASumOfLanesIsRoundedAtEveryNode) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16}) {
    const auto rounded = [&](const torch::Tensor& x) { return wide(x.to(type)); };
    constexpr double scale = 1.0 / 4096;  // 2412/4096 is the largest total up to one
    Tensors lanes;
    for (int lane = 0; lane < kHalfLanes; ++lane)
      lanes.push_back(rounded(rounded(gradient_of(lane)) * (weight_of(lane) * scale)));
    const torch::Tensor mean = rounded(tree(lanes, rounded) / (kTotalWeight * scale));
    const torch::Tensor once =
        rounded(tree(lanes, [](torch::Tensor x) { return x; }) / (kTotalWeight * scale));
    ASSERT_FALSE(torch::equal(mean, once));
    for (const int workers : kWorkers)
      on_threads(thread_groups(workers), [&](const Group& group) {
        const torch::Tensor p = torch::ones({1000}, type).requires_grad_();
        Reducer reducer({{"p", p}}, group, {});
        for_own_lanes(group, [&](int lane, bool, bool last) {
          const int first = lanes_of(group.rank(), group.size(), kHalfLanes).first;
          reducer.begin_lane({.position = lane - first,
                              .weight = weight_of(lane),
                              .total_weight = kTotalWeight,
                              .last = last});
          (wide(p) * gradient_of(lane)).sum().backward();
        });
        EXPECT_EQ(p.grad().scalar_type(), type);
        EXPECT_TRUE(torch::equal(wide(p.grad()), mean)) << type << ", " << workers << " workers";
      });
  }
}

// Parameters of 16 bits, computed with in f32, which every libtorch can; one is used by some lanes only.
struct HalfNet : torch::nn::Module {
  std::map<std::string, torch::Tensor> p;
  HalfNet() {
    float x = 0.1f;
    for (const auto& [name, type] : {std::pair("f16", torch::kFloat16), {"bf16", torch::kBFloat16}})
      for (const auto& [part, rows, columns] :
           {std::tuple("first", 6, 33), {"second", 33, 3}, {"rare", 5, 3}}) {
        const std::string full = std::string(name) + "_" + part;
        p[full] = register_parameter(
            full, torch::linspace(-x, x + 0.1f, rows * columns).view({rows, columns}).to(type));
        x += 0.07f;
      }
  }
  torch::Tensor loss(int lane, int step) {
    const torch::Tensor in = small_batch(lane, step);
    torch::Tensor sum = torch::zeros({});
    for (const std::string type : {"f16", "bf16"}) {
      const torch::Tensor hidden = torch::tanh(in.matmul(wide(p[type + "_first"])));
      sum = sum + hidden.matmul(wide(p[type + "_second"])).square().mean();
      if (lane % 3 == 1) sum = sum + wide(p[type + "_rare"]).square().mean() * static_cast<float>(step + 1);
    }
    return sum;
  }
};

Tensors trained(std::vector<Group> groups, const std::string& strategy) {
  return alike_on(std::move(groups), [&](const Group& group) {
    HalfNet net;
    const auto model = make_strategy(
        strategy, net, group, {.bucket_cap_mb = 4e-4, .first_bucket_mb = 1e-4, .check_replicas_every = 1});
    AdamW optimizer(*model, {.lr = 0.02});
    for (int step = 0; step < 4; ++step) {
      for_own_lanes(group, [&](int lane, bool first, bool last) {
        const auto scope = model->lane({.seed = 3,
                                        .step = step,
                                        .index = lane,
                                        .weight = weight_of(lane),
                                        .total_weight = kTotalWeight,
                                        .first = first,
                                        .last = last});
        net.loss(lane, step).backward();
      });
      optimizer.step();
    }
    return copies(net);
  });
}

std::vector<Group> groups_of(const std::string& engine, int workers) {
  if (engine == "shm") return thread_groups(workers);
  if (engine == "tcp") return tcp_groups(workers, net::Security::plaintext);
  std::vector<int> nodes;  // four workers on each, or two
  for (int r = 0; r < workers; ++r) nodes.push_back(r / (workers > 4 ? 4 : 2));
  return node_groups(nodes, net::Security::plaintext);
}

class HalvesOver : public ::testing::TestWithParam<std::string> {};

TEST_P(HalvesOver, TrainToTheSameBitsOnAnyNumberOfWorkers) {
  const Tensors expected = trained(thread_groups(1), "ddp");
  ASSERT_FALSE(equal(expected, copies(HalfNet())));
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    if (strategy == "zero3" && GetParam() == "tcp") continue;  // is refused there
    for (const int workers : kWorkers)
      EXPECT_TRUE(equal(trained(groups_of(GetParam(), workers), strategy), expected))
          << strategy << ", " << workers << " workers";
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, HalvesOver, ::testing::Values("shm", "tcp", "shm+tcp"),
                         [](const auto& engine) {
                           return engine.param == "shm+tcp" ? "ShmAndTcp" : engine.param;
                         });

}  // namespace
}  // namespace lockstep
