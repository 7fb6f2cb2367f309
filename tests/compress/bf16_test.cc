// Gradients as bf16 on the wire: what they are afterwards, and how many bytes the kernel has sent.
#include "lockstep/compress/bf16.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "comm/bytes_sent.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
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
using lockstep::testing::settled_bytes_sent;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;
using lockstep::testing::tcp_groups;

torch::Tensor on_bf16(const torch::Tensor& x) { return x.to(torch::kBFloat16).to(torch::kFloat32); }

torch::Tensor gradient_of(int rank, torch::ScalarType type = torch::kFloat32) {
  return torch::sin(torch::arange(1000, torch::kFloat64) * (0.37 * (rank + 1))).to(type);
}

// One backward of several parameters, each rank with its own gradients.
void run(const Group& group, Reducer& reducer) {
  torch::Tensor loss = torch::zeros({});
  for (const auto& [name, tensor] : reducer.parameters()) {
    tensor.mutable_grad() = torch::Tensor();
    loss = loss + (tensor * gradient_of(group.rank(), tensor.scalar_type())).sum().to(torch::kFloat32);
  }
  loss.backward();
}

std::vector<NamedTensor> two_parameters(torch::ScalarType type) {
  return {{"a", torch::ones({1000}, type).requires_grad_()},
          {"b", torch::ones({1000}, type).requires_grad_()}};
}

TEST(Bf16, IsTheMeanOfRoundedGradientsRoundedAtEveryNode) {
  on_threads(thread_groups(3), [](const Group& group) {
    Reducer reducer(two_parameters(torch::kFloat32), group,
                    {.bucket_bytes = 4096, .first_bucket_bytes = 4096, .exchange = bf16_exchange()});
    const torch::Tensor pair = on_bf16(on_bf16(gradient_of(0)) + on_bf16(gradient_of(1)));
    const torch::Tensor mean = on_bf16(on_bf16(pair + on_bf16(gradient_of(2))) / 3);
    for (int step = 0; step < 3; ++step) {  // the buckets are laid out anew after the first
      run(group, reducer);
      EXPECT_EQ(reducer.log().buckets.size(), 2u);
      for (const auto& [name, tensor] : reducer.parameters())
        EXPECT_TRUE(torch::equal(tensor.grad(), mean)) << name << ", step " << step;
    }
  });
}

TEST(Bf16, LeavesOtherTypesAndAWorkerAloneAsTheyAre) {
  const auto gradients = [](int workers, torch::ScalarType type, const Exchange& exchange) {
    return alike_on(thread_groups(workers), [&](const Group& group) {
      Reducer reducer(two_parameters(type), group, {.exchange = exchange});
      run(group, reducer);
      return std::vector<torch::Tensor>{reducer.parameters()[0].tensor.grad().clone()};
    });
  };
  for (const auto type : {torch::kFloat64, torch::kFloat16})
    EXPECT_TRUE(equal(gradients(3, type, bf16_exchange()), gradients(3, type, all_reduce_exchange())));
  EXPECT_TRUE(equal(gradients(1, torch::kFloat32, bf16_exchange()),
                    gradients(1, torch::kFloat32, all_reduce_exchange())));
}

TEST(Bf16, GivesZero1AndDataParallelTheSameBits) {
  for (const int workers : {2, 3}) {
    const auto trained = [&](const std::string& strategy) {
      return alike_on(thread_groups(workers), [&](const Group& group) {
        SmallNet net;
        const auto model =
            make_strategy(strategy, net, group,
                          {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4, .exchange = bf16_exchange});
        AdamW optimizer(*model, {.lr = 0.01});
        for (int step = 0; step < 4; ++step) {
          net.forward(small_batch(group.rank(), step)).square().mean().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        return copies(net);
      });
    };
    EXPECT_TRUE(equal(trained("zero1"), trained("ddp"))) << workers;
  }
}

// Buckets of both are under way at a time.
TEST(Bf16, OneExchangeServesTwoModels) {
  on_threads(thread_groups(2), [](const Group& group) {
    const Exchange shared = bf16_exchange();
    const ReducerOptions options{.bucket_bytes = 4096, .first_bucket_bytes = 4096, .exchange = shared};
    Reducer one(two_parameters(torch::kFloat32), group, options);
    Reducer two(two_parameters(torch::kFloat32), group, options);
    const torch::Tensor mean = on_bf16((on_bf16(gradient_of(0)) + on_bf16(gradient_of(1))) / 2);
    for (int step = 0; step < 3; ++step) {
      torch::Tensor loss = torch::zeros({});
      for (const auto* reducer : {&one, &two}) {
        const float sign = reducer == &one ? 1 : -1;
        for (const auto& [name, tensor] : reducer->parameters()) {
          tensor.mutable_grad() = torch::Tensor();
          loss = loss + (tensor * gradient_of(group.rank()) * sign).sum();
        }
      }
      loss.backward();
      for (const auto& [name, tensor] : one.parameters())
        EXPECT_TRUE(torch::equal(tensor.grad(), mean)) << name << ", step " << step;
      for (const auto& [name, tensor] : two.parameters())
        EXPECT_TRUE(torch::equal(tensor.grad(), -mean)) << name << ", step " << step;
    }
  });
}

// Both ends of every connection are in this process, so all that is sent is counted, once.
std::uint64_t bytes_of_a_step(std::vector<Group> groups, const Exchange& exchange) {
  constexpr int kSteps = 4;
  std::uint64_t sent = 0;
  on_threads(std::move(groups), [&](const Group& group) {
    std::vector<NamedTensor> large = {{"w", torch::ones({1000, 500}).requires_grad_()}};
    Reducer reducer(large, group, {.exchange = exchange});
    const auto step = [&] {
      large[0].tensor.mutable_grad() = torch::Tensor();
      (large[0].tensor * static_cast<float>(group.rank() + 1)).sum().backward();
      group.barrier();
    };
    step();  // connections are made, buckets laid out
    const std::uint64_t before = group.rank() == 0 ? settled_bytes_sent() : 0;
    group.barrier();
    for (int i = 0; i < kSteps; ++i) step();
    if (group.rank() == 0) sent = (settled_bytes_sent() - before) / kSteps;
    group.barrier();
  });
  return sent;
}

// Of bf16 to f32, by groups that `make` makes.
double ratio_of_bytes(const std::function<std::vector<Group>()>& make) {
  const std::uint64_t whole = bytes_of_a_step(make(), all_reduce_exchange());
  const std::uint64_t halves = bytes_of_a_step(make(), bf16_exchange());
  EXPECT_GT(whole, 2u * 4 * 500'000);  // 2 MB there and as much back
  ::testing::Test::RecordProperty("bytes_f32", std::to_string(whole));
  ::testing::Test::RecordProperty("bytes_bf16", std::to_string(halves));
  return static_cast<double>(halves) / static_cast<double>(whole);
}

TEST(Bf16, HalvesTheBytesOnTheWire) {
  EXPECT_NEAR(ratio_of_bytes([] { return tcp_groups(2, net::Security::plaintext); }), 0.5, 0.01);
}

TEST(Bf16, HalvesThemBetweenNodesOfSeveral) {
  const auto nodes = [] { return node_groups({0, 0, 1, 1}, net::Security::plaintext); };
  EXPECT_NEAR(ratio_of_bytes(nodes), 0.5, 0.01);
}

}  // namespace
}  // namespace lockstep
