// fp8 and int8 by all-to-all beside the same thing written down once more: 50 steps of means, and what is
// remembered.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using Floats = std::vector<float>;

constexpr std::size_t kScatterBlock = 512;

Floats scatter_gradient(std::size_t count, int rank, int step) {
  Floats g(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(i);
    g[i] = static_cast<float>(std::exp(std::sin(0.01 * x)) * std::sin(x * (0.31 * rank + 0.13 * step + 1.7)));
  }
  return g;
}

// Each block by itself: its largest magnitude becomes 127.
void round_to_int8(float* block, std::size_t n) {
  float most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::abs(block[i]));
  const float step = most / 127;
  const auto inverse = static_cast<float>(1 / static_cast<double>(step));
  for (std::size_t i = 0; i < n; ++i) block[i] = std::nearbyint(block[i] * inverse) * step;
}

// Numbers of 3 bits behind the leading one, down to 2^-6, and multiples of 2^-9 below; the largest is 448.
void round_to_fp8(float* block, std::size_t n) {
  double most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max<double>(most, std::abs(block[i]));
  const double scale = std::exp2(std::ceil(std::log2(most / 448)));
  for (std::size_t i = 0; i < n; ++i) {
    const double x = block[i] / scale;
    const int exponent = x == 0 ? -6 : std::max(std::ilogb(x), -6);
    const double unit = std::exp2(exponent - 3);
    block[i] = static_cast<float>(std::nearbyint(x / unit) * unit * scale);
  }
}

void round_blocks(Floats& x, bool is_fp8) {
  for (std::size_t i = 0; i < x.size(); i += kScatterBlock)
    (is_fp8 ? round_to_fp8 : round_to_int8)(x.data() + i, std::min(kScatterBlock, x.size() - i));
}

// What every rank makes of the step: the sum in pairs of what each has rounded, rounded once more.
struct TwiceRounded {
  bool is_fp8 = false, feedback = false;
  std::vector<Floats> owed = {};  // with its sign changed

  Floats mean(const std::vector<Floats>& gradients) {
    const auto ranks = gradients.size();
    std::vector<Floats> sums;
    owed.resize(ranks, Floats(gradients[0].size()));
    for (std::size_t r = 0; r < ranks; ++r) {
      Floats sent = gradients[r];
      for (float& x : sent) x *= 1 / static_cast<float>(ranks);
      for (std::size_t i = 0; i < sent.size() && feedback; ++i) sent[i] -= owed[r][i];
      const Floats meant = sent;
      round_blocks(sent, is_fp8);
      for (std::size_t i = 0; i < sent.size() && feedback; ++i) owed[r][i] = sent[i] - meant[i];
      sums.push_back(std::move(sent));
    }
    for (std::size_t step = 1; step < ranks; step *= 2)
      for (std::size_t r = 0; r + step < ranks; r += 2 * step)
        for (std::size_t i = 0; i < sums[r].size(); ++i) sums[r][i] += sums[r + step][i];
    round_blocks(sums[0], is_fp8);
    return sums[0];
  }
};

void expect_twice_rounded(const std::string& method, int ranks, TwiceRounded reference) {
  constexpr int kScatterSteps = 50;
  const std::vector<std::size_t> counts = {1300, 200, 2048};
  std::vector<TwiceRounded> references(counts.size(), reference);
  std::vector<std::vector<Floats>> means(kScatterSteps);
  for (int step = 0; step < kScatterSteps; ++step)
    for (std::size_t p = 0; p < counts.size(); ++p) {
      std::vector<Floats> gradients;
      for (int r = 0; r < ranks; ++r) gradients.push_back(scatter_gradient(counts[p], r, step));
      means[static_cast<std::size_t>(step)].push_back(references[p].mean(gradients));
    }
  on_threads(thread_groups(ranks), [&](const Group& group) {
    const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
    std::vector<NamedTensor> parameters;
    for (const std::size_t n : counts)
      parameters.push_back(
          {"p" + std::to_string(n), torch::ones({static_cast<std::int64_t>(n)}).requires_grad_()});
    Reducer reducer(parameters, group, {.exchange = exchange});
    for (int step = 0; step < kScatterSteps; ++step) {
      torch::Tensor loss = torch::zeros({});
      for (std::size_t p = 0; p < counts.size(); ++p) {
        parameters[p].tensor.mutable_grad() = torch::Tensor();
        loss = loss +
               (parameters[p].tensor * torch::tensor(scatter_gradient(counts[p], group.rank(), step))).sum();
      }
      loss.backward();
      for (std::size_t p = 0; p < counts.size(); ++p)
        ASSERT_TRUE(torch::equal(parameters[p].tensor.grad(),
                                 torch::tensor(means[static_cast<std::size_t>(step)][p])))
            << method << ", " << ranks << " ranks, step " << step << ", " << parameters[p].name;
    }
    const Exchange::State state = exchange.state();  // steps, and up to how many subtrees it gathers
    EXPECT_EQ(state.size(), 2 + (reference.feedback ? counts.size() * static_cast<std::size_t>(ranks) : 0));
    for (std::size_t p = 0; p < counts.size() && reference.feedback; ++p)
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
        EXPECT_TRUE(torch::equal(state.at("owed/" + std::to_string(r) + "/" + parameters[p].name),
                                 torch::tensor(references[p].owed[r])))
            << method << ", " << parameters[p].name << ", subtree " << r;
  });
}

TEST(Scattered, EqualsAReferenceOver50Steps) {
  for (const int ranks : {2, 4, 8}) {
    expect_twice_rounded("fp8:form=scattered:min=0", ranks, {.is_fp8 = true});
    expect_twice_rounded("int8:form=scattered:min=0", ranks, {});
  }
  expect_twice_rounded("int8:min=0:ef=on", 8, {.feedback = true});  // more than 4 subtrees
  expect_twice_rounded("fp8:form=scattered:min=0:ef=on", 4, {.is_fp8 = true, .feedback = true});
}

// A NaN of one rank is everybody's, and costs nobody what it owes.
TEST(Scattered, PassesNanOn) {
  on_threads(thread_groups(3), [&](const Group& group) {
    const Exchange exchange =
        compressed({.method = "int8:form=scattered:min=0:ef=on"})(Exchange::Leaves::everything);
    const std::vector<NamedTensor> parameters = {{"good", torch::ones({1500}).requires_grad_()},
                                                 {"bad", torch::ones({1500}).requires_grad_()}};
    Reducer reducer(parameters, group, {.exchange = exchange});
    const auto step = [&](bool is_bad) {
      torch::Tensor loss = torch::zeros({});
      for (const auto& [name, tensor] : parameters) {
        tensor.mutable_grad() = torch::Tensor();
        torch::Tensor g = torch::tensor(scatter_gradient(1500, group.rank(), 1));
        if (is_bad && name == "bad" && group.rank() == 1) g[700] = NAN;
        loss = loss + (tensor * g).sum();
      }
      loss.backward();
    };
    step(false);
    const Exchange::State before = exchange.state();
    const torch::Tensor owed = before.at("owed/0/bad").clone();
    step(true);
    EXPECT_TRUE(parameters[1].tensor.grad().isnan().all().item<bool>());
    EXPECT_TRUE(parameters[0].tensor.grad().isfinite().all().item<bool>());
    // What rank 0 would have sent is owed beside it.
    const torch::Tensor meant = torch::tensor(scatter_gradient(1500, 0, 1)) * (1 / 3.0F);
    EXPECT_TRUE(torch::allclose(exchange.state().at("owed/0/bad"), owed - meant, 1e-5, 1e-6));
    step(false);
    EXPECT_TRUE(parameters[1].tensor.grad().isfinite().all().item<bool>());
  });
}

TEST(Scattered, RefusesWhatIsNoForm) {
  const auto refusal = [](const std::string& method) -> std::string {
    try {
      (void)compressed({.method = method});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(refusal("fp8:form=round").find("form=round; accepted: gathered, scattered"), std::string::npos);
  EXPECT_NE(refusal("qsgd:16:form=scattered").find("no option 'form'"), std::string::npos);
  EXPECT_NE(refusal("fp8:form=scattered:ef=on:two-sided=on").find("needs form=gathered"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
