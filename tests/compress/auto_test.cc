// --compress auto, and what an exchange tells of what it saves.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "compress/chooser.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using lockstep::testing::tcp_groups;

// A model of one matrix that takes steps with gradients of its rank's own.
struct OneMatrix {
  OneMatrix(const Group& group_, const CompressOptions& options)
      : group(group_),
        exchange(compressed(options)(Exchange::Leaves::everything)),
        reducer(parameters, group, {.exchange = exchange}) {}

  torch::Tensor step(int number) {
    const torch::Tensor w = parameters[0].tensor;
    w.mutable_grad() = torch::Tensor();
    const auto rate = static_cast<float>(0.3 + group.rank() + 0.1 * number);
    (w * torch::sin(torch::arange(64 * 96, torch::kFloat32) * rate).view({64, 96})).sum().backward();
    return w.grad().clone();
  }

  Group group;
  std::vector<NamedTensor> parameters = {{"w", torch::ones({64, 96}).requires_grad_()}};
  Exchange exchange;
  Reducer reducer;
};

constexpr int kUntilChosen = compress::Chooser::kProbes + 3;  // the first, the probes, the question

TEST(CompressAuto, LeavesSharedMemoryAlone) {
  on_threads(thread_groups(2), [](const Group& group) {
    OneMatrix chosen(group, {.method = "auto", .max_error = 10}), dense(group, {.method = "none"});
    for (int step = 0; step < kUntilChosen + 2; ++step)
      EXPECT_TRUE(torch::equal(chosen.step(step), dense.step(step)));
    EXPECT_EQ(chosen.exchange.figures().about, "auto: none; the workers share their memory");
  });
}

TEST(CompressAuto, IsDecidedByAllAlikeAndKept) {
  for (const double max_error : {1e-6, 10.0}) {
    std::vector<std::string> about(3);
    on_threads(tcp_groups(3, net::Security::plaintext), [&](const Group& group) {
      OneMatrix chosen(group, {.method = "auto", .max_error = max_error}), dense(group, {.method = "none"});
      for (int step = 0; step < kUntilChosen - 1; ++step) {
        EXPECT_EQ(chosen.exchange.figures().about, "auto, not decided yet");
        EXPECT_TRUE(torch::equal(chosen.step(step), dense.step(step))) << step;
      }
      const torch::Tensor mean = chosen.step(kUntilChosen - 1);
      about[static_cast<std::size_t>(group.rank())] = chosen.exchange.figures().about;
      // What is small enough is decided by the user, what pays by the links.
      if (max_error < 1) {
        EXPECT_TRUE(torch::equal(mean, dense.step(kUntilChosen - 1)));
      }
      const Exchange::State state = chosen.exchange.state();
      OneMatrix later(group, {.method = "auto", .max_error = max_error});
      later.exchange.load(state);
      EXPECT_TRUE(torch::equal(later.step(9), chosen.step(9)));
    });
    EXPECT_NE(about[0].find("expected of a step: as it is"), std::string::npos) << about[0];
    EXPECT_NE(about[0].find("topk:0.01"), std::string::npos) << about[0];
    for (const std::string& text : about)
      EXPECT_EQ(text.substr(0, text.find(';')), about[0].substr(0, about[0].find(';')));
  }
}

// What is not finite is found where a bucket ends, which may be on another group's thread than the counts'.
TEST(CompressedOverflow, IsEverybodysInTheSameStep) {
  for (const char* method : {"powersgd:rank=2:min=0", "intsgd:min=0", "topk:0.1:min=0"})
    on_threads(thread_groups(2), [&](const Group& group) {
      OneMatrix one(group, {.method = method});
      one.reducer.watch_overflow(true);
      for (int step = 0; step < 20; ++step) {
        torch::Tensor& w = one.parameters[0].tensor;
        const bool bad = step % 3 == 1;
        w.mutable_grad() = torch::Tensor();
        const float factor = bad && group.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
        (w * torch::cos(torch::arange(64 * 96, torch::kFloat32)).view({64, 96}) * factor).sum().backward();
        EXPECT_EQ(one.reducer.overflowed(), bad) << method << ", step " << step << ", rank " << group.rank();
      }
    });
}

TEST(ExchangeFigures, TellBytesAndErrors) {
  on_threads(thread_groups(2), [](const Group& group) {
    const auto figures = [&](const std::string& method) {
      OneMatrix one(group, {.method = method});
      one.step(0);
      return one.exchange.figures();
    };
    constexpr double kBytes = 64 * 96 * 4;
    for (const char* method :
         {"topk:0.01", "onebit", "fp8", "powersgd:rank=4", "randk:0.1", "intsgd", "none"})
      EXPECT_EQ(figures(method).dense_bytes, kBytes) << method;
    EXPECT_NEAR(kBytes / figures("topk:0.01").sent_bytes, 50, 2);
    EXPECT_NEAR(kBytes / figures("onebit").sent_bytes, 30, 1);
    EXPECT_NEAR(kBytes / figures("powersgd:rank=4").sent_bytes, 64.0 * 96 / (4 * (64 + 96)), 0.1);
    EXPECT_EQ(figures("none").sent_bytes, kBytes);
    EXPECT_LT(figures("fp8").error, 0.1);
    EXPECT_GT(figures("fp8").error, 0.001);
    EXPECT_GT(figures("topk:0.01").error, 0.5);
    EXPECT_LT(figures("topk:0.01").error, 1);
    EXPECT_TRUE(std::isnan(figures("none").error));
  });
}

}  // namespace
}  // namespace lockstep
