// Calls of an exchange come in one order on every rank, and nobody waits in backward for who waits for it.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "compress/chooser.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using lockstep::testing::tcp_groups;

// Two methods whose second calls begin where their first end. Four workers share two subtrees, so all of it
// begins on a group's thread; what travels as it is takes that thread so long that first calls end meanwhile.
class SecondCalls : public ::testing::TestWithParam<const char*> {};

TEST_P(SecondCalls, OfTwoRulesHaveOneOrder) {
  on_threads(thread_groups(4), [](const Group& group) {
    const Exchange exchange = compressed({.method = GetParam(), .groups = 2})(Exchange::Leaves::everything);
    const std::vector<NamedTensor> parameters = {{"a", torch::ones({16, 16}).requires_grad_()},
                                                 {"b", torch::ones({16, 16}).requires_grad_()},
                                                 {"c", torch::ones({1 << 18}).requires_grad_()}};
    Reducer reducer(parameters, group, {.first_bucket_bytes = 8 << 20, .exchange = exchange});
    for (int step = 0; step < 150; ++step) {
      torch::Tensor loss = torch::zeros({});
      for (const auto& [name, tensor] : parameters) {
        tensor.mutable_grad() = torch::Tensor();
        loss = loss + (tensor * static_cast<float>(group.rank() + step)).sum();
      }
      loss.backward();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, SecondCalls,
                         ::testing::Values("a=powersgd:rank=1:min=0,b=powersgd:rank=2:min=0",
                                           "a=int8:form=scattered:min=0,b=fp8:form=scattered:min=0"));

// Rank 0 has a last layer of its own: its bucket is full at once there, and leaves at the end of backward on
// rank 1, which gets there when rank 0 has taken part in the norm's backward.
struct NormNet : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, extra{nullptr};
  SyncBatchNorm norm{nullptr};
  NormNet() {
    first = register_module("first", torch::nn::Linear(32, 64));
    norm = register_module("norm", SyncBatchNorm(64));
    second = register_module("second", torch::nn::Linear(64, 64));
    extra = register_module("extra", torch::nn::Linear(64, 64));
  }
};

TEST(CompressAuto, DecidesWithoutWaitingForWhoIsInBackward) {
  on_threads(tcp_groups(2, net::Security::plaintext, std::chrono::seconds(10)), [](const Group& group) {
    torch::manual_seed(1);
    const auto net = std::make_shared<NormNet>();
    DataParallel ddp(net, group,
                     {.bucket_cap_mb = 1e-3,
                      .first_bucket_mb = 1e-3,
                      .exchange = compressed({.method = "auto", .max_error = 10})});
    for (int step = 0; step < compress::Chooser::kProbes + 4; ++step) {
      const torch::Tensor x =
          torch::sin(torch::arange(8 * 32, torch::kFloat32) * (0.3 + group.rank() + step));
      torch::Tensor y = net->second(net->norm(net->first(x.view({8, 32}))));
      if (group.rank() == 0) y = net->extra(y);
      y.square().mean().backward();
      net->zero_grad();
      ddp.end_step();
    }
    EXPECT_NE(ddp.exchange().figures().about, "auto, not decided yet");
  });
}

}  // namespace
}  // namespace lockstep
