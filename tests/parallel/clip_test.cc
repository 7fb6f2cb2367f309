// Clipping by the norm of everybody's gradients. Threads as ranks.
#include "lockstep/optim/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

constexpr double kNorms[] = {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()};

// On two workers, after a backward, for each kind of norm.
void with_gradients(const char* strategy,
                    const std::function<void(Strategy&, SmallNet&, double norm_type)>& body) {
  testing::on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    const auto net = std::make_shared<SmallNet>();
    const auto model = make_strategy(strategy, net, group);
    for (const double p : kNorms) {
      for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::Tensor();
      net->forward(small_batch(group.rank(), 0)).square().mean().backward();
      body(*model, *net, p);
    }
  });
}

TEST(Clip, IsTheGlobalNormOfTheMeans) {
  with_gradients("ddp", [](Strategy& model, SmallNet& net, double p) {
    std::vector<torch::Tensor> before, flat;
    for (const auto& parameter : net.parameters()) {
      before.push_back(parameter.grad().clone());
      flat.push_back(parameter.grad().to(torch::kFloat64).flatten());
    }
    const double expected = torch::norm(torch::cat(flat), p).item<double>();
    const double norm = clip_grad_norm_(model, expected / 2, p);
    EXPECT_NEAR(norm, expected, expected * 1e-12);
    const double scale = expected / 2 / (norm + 1e-6);
    std::size_t i = 0;
    for (const auto& parameter : net.parameters())
      EXPECT_TRUE(torch::allclose(parameter.grad(), before[i++] * scale, 1e-6, 0));
    EXPECT_LT(clip_grad_norm_(model, 1e9, p), expected);  // leaves them alone
    EXPECT_TRUE(torch::allclose(net.parameters()[0].grad(), before[0] * scale, 1e-6, 0));
    EXPECT_THROW((void)clip_grad_norm_(model, std::nan("")), UsageError);
    EXPECT_THROW((void)clip_grad_norm_(model, 1, 0), UsageError);
  });
}

// Whichever parameter has it, and whatever comes behind.
TEST(Clip, ANumberThatIsNoneStaysInEveryNorm) {
  for (std::size_t bad = 0; bad < 6; ++bad)
    with_gradients("ddp", [&](Strategy& model, SmallNet& net, double p) {
      ASSERT_EQ(net.parameters().size(), 6U);
      net.parameters()[bad].grad().flatten()[0] = std::nan("");
      EXPECT_TRUE(std::isnan(clip_grad_norm_(model, 1, p))) << "parameter " << bad << ", norm " << p;
      for (const auto& parameter : net.parameters())
        EXPECT_TRUE(parameter.grad().isnan().all().item<bool>()) << "nothing is hidden";
    });
}

// With a scaled loss the limits are scaled too, and may be beyond what sixteen bits hold.
TEST(Clip, SixteenBitsAreClippedAtAnyValue) {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    torch::Tensor parameter = torch::zeros({2, 2}, type).requires_grad_();
    const auto give = [&] {
      parameter.mutable_grad() = torch::tensor({-60000.0f, 0.5f, 2.0f, 40000.0f}).to(type).view({2, 2});
    };
    const SGD optimizer({{"w", parameter}});
    give();
    clip_grad_value_(optimizer.source(), 2);
    EXPECT_TRUE(torch::equal(parameter.grad().to(torch::kFloat32).flatten(),
                             torch::tensor({-2.0f, 0.5f, 2.0f, 2.0f})));
    give();
    const torch::Tensor before = parameter.grad().clone();
    clip_grad_value_(optimizer.source(), 4 * 65536.0);
    EXPECT_TRUE(torch::equal(parameter.grad(), before));
    EXPECT_GT(clip_grad_norm_(optimizer.source(), 1), 7e4);
    EXPECT_NEAR(clip_grad_norm_(optimizer.source(), 10), 1, 1e-2);
  }
}

}  // namespace
}  // namespace lockstep
