// Threads as ranks: what the reducer promises about gradients, however the model uses its parameters.
#include "lockstep/grad/reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;

torch::Tensor leaf(std::vector<float> values, torch::ScalarType type = torch::kFloat32) {
  return torch::tensor(values).to(type).requires_grad_();
}

std::vector<float> values(const torch::Tensor& t) {
  const torch::Tensor f = t.detach().to(torch::kFloat32).contiguous();
  return {f.data_ptr<float>(), f.data_ptr<float>() + f.numel()};
}

// Small buckets, so that there are several.
ReducerOptions small() { return {.bucket_bytes = 128, .first_bucket_bytes = 64}; }

class ReducerTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReducerTest, ::testing::Values(1, 2, 3, 4));

TEST_P(ReducerTest, GradientsAreMeansOverRanksAndViewsIntoBuckets) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    auto a = leaf({1, 2, 3});
    auto b = leaf({4});
    Reducer reducer({{"a", a}, {"b", b}}, group, small());
    for (int step = 0; step < 4; ++step) {  // the buckets are laid out anew after the first
      a.mutable_grad() = b.mutable_grad() = torch::Tensor();
      ((a * static_cast<float>(group.rank() + 1)).sum() + b.sum() * static_cast<float>(step)).backward();
      const float mean = static_cast<float>(n + 1) / 2;
      EXPECT_EQ(values(a.grad()), std::vector<float>(3, mean));
      EXPECT_EQ(values(b.grad()), std::vector<float>(1, static_cast<float>(step)));
    }
    EXPECT_EQ(reducer.exchanges(), 4);
    EXPECT_GE(reducer.bucket_bytes(), 16u);
    EXPECT_LE(reducer.log().wait_begin_ns, reducer.log().wait_end_ns);
    ASSERT_FALSE(reducer.log().buckets.empty());
    for (const BucketEvent& event : reducer.log().buckets) EXPECT_LE(event.ready_ns, event.end_ns);
  });
}

TEST(Reducer, BucketsLeaveAsTheirGradientsComeAndFollowTheirOrder) {
  on_threads(thread_groups(2), [&](const Group& group) {
    std::vector<NamedTensor> p;
    for (const int size : {16, 32, 48})
      p.push_back({"p" + std::to_string(size), leaf(std::vector<float>(static_cast<std::size_t>(size), 1))});
    using Counts = std::vector<std::size_t>;
    Counts counts;  // elements of the buckets, as they leave
    Counts before;  // how many had left when a gradient came
    for (const NamedTensor& one : p)
      one.tensor.register_hook([&](const torch::Tensor&) { before.push_back(counts.size()); });
    ReducerOptions options{.bucket_bytes = 64, .first_bucket_bytes = 64};  // one each
    options.exchange.run = [&](const Bucket& b) {
      counts.push_back(b.data.count);
      return group.all_reduce_async(b.data, {.op = ReduceOp::avg, .divisor = b.divisor});
    };
    Reducer reducer(p, group, options);
    for (int step = 0; step < 3; ++step) {
      for (NamedTensor& one : p) one.tensor.mutable_grad() = torch::Tensor();
      counts.clear();
      before.clear();
      // Backward comes first to what was used last: to p[0], where the reverse of registration has p[2].
      torch::Tensor loss = p[2].tensor.sum();
      for (const std::size_t i : {1, 0}) loss = loss + p[i].tensor.sum();
      loss.backward();
      // The first bucket of the first step waits for the last gradient; later ones leave one by one.
      EXPECT_EQ(counts, step == 0 ? (Counts{48, 32, 16}) : (Counts{16, 32, 48})) << "step " << step;
      EXPECT_EQ(before, step == 0 ? (Counts{0, 0, 0}) : (Counts{0, 1, 2})) << "step " << step;
      for (const NamedTensor& one : p)
        EXPECT_EQ(values(one.tensor.grad()), std::vector<float>(values(one.tensor).size(), 1));
    }
  });
}

TEST_P(ReducerTest, UnusedParametersAreFoundWhereverTheyAre) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    auto always = leaf({1});
    auto by_rank_0 = leaf({1});
    auto never = leaf({1});
    Reducer reducer({{"always", always}, {"by_rank_0", by_rank_0}, {"never", never}}, group, small());
    for (int step = 0; step < 3; ++step) {
      for (auto& p : {always, by_rank_0, never}) p.mutable_grad() = torch::Tensor();
      auto loss = always.sum() * 2;
      if (group.rank() == 0) loss = loss + by_rank_0.sum() * 6;
      loss.backward();
      EXPECT_EQ(values(always.grad()), std::vector<float>{2});
      EXPECT_EQ(values(by_rank_0.grad()), std::vector<float>{6.0f / static_cast<float>(n)});
      EXPECT_FALSE(never.grad().defined());
    }
  });
}

TEST_P(ReducerTest, UnusedParametersAreNamedWhenTheyAreAnError) {
  const int n = GetParam();
  if (n == 1) return;
  on_threads(thread_groups(n), [&](const Group& group) {
    auto a = leaf({1});
    auto b = leaf({1});
    ReducerOptions options = small();
    options.find_unused_parameters = false;
    Reducer reducer({{"net.a", a}, {"net.b", b}}, group, options);
    try {
      (group.rank() == 0 ? a.sum() + b.sum() : a.sum()).backward();
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("'net.b'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(n - 1) + " of " + std::to_string(n)),
                std::string::npos)
          << error.what();
    }
  });
}

TEST_P(ReducerTest, TypesDoNotMix) {
  on_threads(thread_groups(GetParam()), [&](const Group& group) {
    auto single = leaf({1, 2});
    auto twice = leaf({1, 2, 3}, torch::kFloat64);
    auto half = leaf({1}, torch::kBFloat16);
    Reducer reducer({{"f32", single}, {"f64", twice}, {"bf16", half}}, group, small());
    for (int step = 0; step < 2; ++step) {
      for (auto& p : {single, twice, half}) p.mutable_grad() = torch::Tensor();
      (single.sum() * 2 + twice.sum() * 3 + half.sum() * 4).backward();
      EXPECT_EQ(values(single.grad()), std::vector<float>(2, 2));
      EXPECT_EQ(twice.grad().scalar_type(), torch::kFloat64);
      EXPECT_EQ(values(twice.grad()), std::vector<float>(3, 3));
      EXPECT_EQ(values(half.grad()), std::vector<float>(1, 4));
    }
  });
}

TEST_P(ReducerTest, AccumulatesWithoutSyncThenExchangesTheSum) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    auto a = leaf({1, 1});
    Reducer reducer({{"a", a}}, group, small());
    const auto rank = static_cast<float>(group.rank());
    for (int step = 0; step < 3; ++step) {
      a.mutable_grad() = torch::Tensor();
      reducer.set_sync(false);
      (a.sum() * rank).backward();
      EXPECT_EQ(values(a.grad()), std::vector<float>(2, rank));
      reducer.set_sync(true);
      (a.sum() * 1).backward();
      EXPECT_EQ(values(a.grad()), std::vector<float>(2, static_cast<float>(n - 1) / 2 + 1));
    }
  });
}

TEST_P(ReducerTest, BackwardTwiceAddsASecondMean) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    auto a = leaf({1});
    Reducer reducer({{"a", a}}, group, small());
    const auto rank = static_cast<float>(group.rank());
    (a.sum() * rank).backward();
    (a.sum() * (rank + 10)).backward();
    EXPECT_FLOAT_EQ(values(a.grad())[0], static_cast<float>(n - 1) / 2 * 2 + 10);
    auto loss = a.sum() * rank;  // the same graph twice
    a.mutable_grad() = torch::Tensor();
    loss.backward({}, true);
    loss.backward();
    EXPECT_FLOAT_EQ(values(a.grad())[0], static_cast<float>(n - 1));
  });
}

TEST_P(ReducerTest, AnExceptionBetweenBackwardAndStepLeavesTheNextStepWhole) {
  on_threads(thread_groups(GetParam()), [&](const Group& group) {
    auto a = leaf({1, 2});
    Reducer reducer({{"a", a}}, group, small());
    for (int step = 0; step < 4; ++step) {
      a.mutable_grad() = torch::Tensor();
      try {
        (a.sum() * static_cast<float>(step)).backward();
        if (step == 1) throw std::runtime_error("between backward and step");
        EXPECT_EQ(values(a.grad()), std::vector<float>(2, static_cast<float>(step)));
        reducer.end_step();
      } catch (const std::runtime_error&) {
        EXPECT_EQ(step, 1);
      }
    }
  });
}

// y = x, whose backward throws on demand.
struct Thrower : torch::autograd::Function<Thrower> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x) { return x * 1; }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list) {
    throw std::runtime_error("inside backward");
  }
};

TEST_P(ReducerTest, AnExceptionInsideBackwardIsForgottenByReset) {
  on_threads(thread_groups(GetParam()), [&](const Group& group) {
    auto early = leaf({1});
    auto late = leaf({1});
    Reducer reducer({{"late", late}, {"early", early}}, group, small());
    (early.sum() + late.sum()).backward();
    reducer.end_step();
    for (auto& p : {early, late}) p.mutable_grad() = torch::Tensor();
    EXPECT_THROW((Thrower::apply(late).sum() + early.sum()).backward(), std::runtime_error);
    reducer.reset();
    (early.sum() * 3 + late.sum() * 5).backward();
    EXPECT_EQ(values(early.grad()), std::vector<float>{3});
    EXPECT_EQ(values(late.grad()), std::vector<float>{5});
  });
}

// As a program does that catches what its backward throws and goes on (no memory for this batch): what came
// would be exchanged as if it were all.
TEST_P(ReducerTest, AStepWhoseBackwardThrewIsNotExchanged) {
  on_threads(thread_groups(GetParam()), [&](const Group& group) {
    auto early = leaf({1});
    auto late = leaf({1});
    Reducer reducer({{"late", late}, {"early", early}}, group, small());
    const auto torn = [&] {
      const auto throws = Thrower::apply(late).sum();
      const auto comes = early.sum();  // made later, so that backward comes to it first
      EXPECT_THROW((throws + comes).backward(), std::runtime_error);
    };
    const auto whole = [&] { (early.sum() * 3 + late.sum() * 5).backward(); };
    const auto goes_on_after_reset = [&] {
      reducer.reset();
      whole();
      EXPECT_EQ(values(early.grad()), std::vector<float>{3});
      EXPECT_EQ(values(late.grad()), std::vector<float>{5});
      reducer.end_step();
      for (auto& p : {early, late}) p.mutable_grad() = torch::Tensor();
    };
    torn();
    EXPECT_THROW(reducer.synchronize(), UsageError);
    EXPECT_THROW(whole(), UsageError);
    goes_on_after_reset();

    reducer.set_sync(false);
    torn();
    reducer.set_sync(true);
    EXPECT_THROW(whole(), UsageError);
    goes_on_after_reset();

    reducer.begin_lane({.position = 0, .total_weight = 2, .last = false});
    torn();
    reducer.end_lane();
    EXPECT_THROW(reducer.begin_lane({.position = 1, .total_weight = 2}), UsageError);
    EXPECT_THROW(reducer.synchronize(), UsageError);
    goes_on_after_reset();

    reducer.begin_lane({.position = 0, .total_weight = 1});
    torn();
    reducer.end_lane();
    EXPECT_THROW(reducer.synchronize(), UsageError);
    goes_on_after_reset();
    EXPECT_EQ(reducer.exchanges(), 4);
  });
}

// A checkpointed segment: forward without a graph, and a backward inside backward that makes one. The weight
// is reached through `captured`, as a module's would be.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               torch::Tensor weight) {
    context->saved_data["x"] = x.detach();
    context->saved_data["weight"] = weight;
    const torch::NoGradGuard no_grad;
    return x * weight.detach();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::AutoGradMode with_grad(true);
    auto x = context->saved_data["x"].toTensor().detach().requires_grad_();
    auto weight = context->saved_data["weight"].toTensor();
    (x * weight).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

TEST_P(ReducerTest, BackwardInsideBackwardIsPartOfTheSameExchange) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    auto first = leaf({2});
    auto inside = leaf({3});
    auto never = leaf({1});
    Reducer reducer({{"first", first}, {"inside", inside}, {"never", never}}, group, small());
    for (int step = 0; step < 3; ++step) {
      for (auto& p : {first, inside}) p.mutable_grad() = torch::Tensor();
      const auto scale = static_cast<float>(group.rank() + 1);
      (Checkpointed::apply(first * 1, inside).sum() * scale).backward();
      const float mean = static_cast<float>(n + 1) / 2;
      EXPECT_EQ(values(first.grad()), std::vector<float>{3 * mean});
      EXPECT_EQ(values(inside.grad()), std::vector<float>{2 * mean});
      EXPECT_FALSE(never.grad().defined());
    }
    EXPECT_EQ(reducer.exchanges(), 3);
  });
}

TEST_P(ReducerTest, AParameterInTwoInnerBackwardsIsNamed) {
  on_threads(thread_groups(GetParam()), [&](const Group& group) {
    auto first = leaf({2});
    auto shared = leaf({3});
    Reducer reducer({{"first", first}, {"shared", shared}}, group, small());
    try {
      auto x = Checkpointed::apply(first * 1, shared);
      Checkpointed::apply(x, shared).sum().backward();
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("'shared'"), std::string::npos) << error.what();
    }
    reducer.reset();
  });
}

TEST_P(ReducerTest, AHookTakesTheBucketsInOrder) {
  const int n = GetParam();
  on_threads(thread_groups(n), [&](const Group& group) {
    std::vector<NamedTensor> parameters;
    for (int i = 0; i < 6; ++i)
      parameters.push_back({"p" + std::to_string(i), leaf(std::vector<float>(16, 1))});
    std::vector<int> order;
    ReducerOptions options = small();
    options.exchange.run = [&](const Bucket& bucket) {
      order.push_back(bucket.index);
      return group.all_reduce_async(bucket.data, {.op = ReduceOp::avg, .divisor = bucket.divisor});
    };
    Reducer reducer(parameters, group, options);
    auto loss = torch::zeros({});
    for (auto& p : parameters) loss = loss + p.tensor.sum() * static_cast<float>(group.rank());
    loss.backward();
    ASSERT_GT(order.size(), 2u);
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int>(i));
    for (auto& p : parameters)
      EXPECT_EQ(values(p.tensor.grad()), std::vector<float>(16, static_cast<float>(n - 1) / 2));
  });
}

// Weights that 16 bits can't hold: odd ones above 2048 (f16) or 256 (bf16), and any above 65,504.
TEST(Reducer, WeightsOfLanesMayBeLargerThanSixteenBits) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16})
    for (const int n : {1, 2})
      for (const double large : {257.0, 2049.0, 70001.0, 3e7})
        on_threads(thread_groups(n), [&](const Group& group) {
          auto a = leaf({1, 1}, type);
          Reducer reducer({{"a", a}}, group, small());
          const int lanes = 2 / n;
          for (int k = 0; k < lanes; ++k) {
            const int index = group.rank() * lanes + k;
            reducer.begin_lane({.position = k,
                                .weight = index == 0 ? large : 1,
                                .total_weight = large + 1,
                                .last = k == lanes - 1});
            (a.to(torch::kFloat32).sum() * (index == 0 ? 4.0f : 2.0f)).backward();
          }
          const auto mean = static_cast<float>((4 * large + 2) / (large + 1));
          const float step = type == torch::kBFloat16 ? 1.0f / 128 : 1.0f / 1024;
          for (const float value : values(a.grad())) EXPECT_NEAR(value, mean, 2 * step * mean) << large;
        });
}

// What travels beside the gradients is waited for when their exchange fails: its memory is used again.
TEST(Reducer, AFailedExchangeAbandonsWhatTravelsBeside) {
  struct Beside final : BesideGradients {
    void backward_over() override {}
    void begin(bool) override { begun = true; }
    void finish(bool) override { finished = true; }
    void abandon() noexcept override { abandoned = true; }
    void nobody() override {}
    void announce() override {}
    bool begun = false, finished = false, abandoned = false;
  };
  on_threads(thread_groups(2), [&](const Group& group) {
    auto a = leaf({1});
    auto b = leaf({1});
    Beside beside;
    ReducerOptions options = small();
    options.find_unused_parameters = false;
    options.beside = &beside;
    Reducer reducer({{"a", a}, {"b", b}}, group, options);
    EXPECT_THROW(a.sum().backward(), UsageError);
    EXPECT_TRUE(beside.begun && beside.abandoned && !beside.finished);
  });
}

TEST(Reducer, RefusesWhatItCannotCarry) {
  const Group group = thread_groups(1)[0];
  auto whole = torch::ones({2}, torch::kInt64);
  EXPECT_THROW(Reducer({{"whole", whole}}, group, small()), UsageError);
  auto wide = torch::ones({1}).expand({4});
  EXPECT_THROW(Reducer({{"wide", wide}}, group, small()), UsageError);
  auto turning = torch::ones({2}, torch::kComplexFloat).requires_grad_();
  try {
    Reducer({{"turning", turning}}, group, small());
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "parameter 'turning' has type ComplexFloat; accepted: Double, Float, Half, BFloat16");
  }
}

TEST(Reducer, ANestedLayoutKeepsStrides) {
  const Group group = thread_groups(1)[0];
  auto weight = torch::randn({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  Reducer reducer({{"weight", weight}}, group, small());
  (weight * weight).sum().backward();
  EXPECT_EQ(weight.grad().strides(), weight.strides());
  EXPECT_TRUE(torch::equal(weight.grad(), (weight * 2).detach()));
}

}  // namespace
}  // namespace lockstep
