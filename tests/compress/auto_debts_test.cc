// --compress auto: what is owed when a method, or the workers, change; and what is known where gradients say
// nothing.
#include <gtest/gtest.h>

#include <limits>

#include "compress/debts.h"
#include "compress/two_buckets.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using lockstep::testing::FakeLink;
using lockstep::testing::keeps_few_bits;
using lockstep::testing::kEvery;
using lockstep::testing::kFast;
using lockstep::testing::kFirstChoice;
using lockstep::testing::kNone;
using lockstep::testing::on_threads;
using lockstep::testing::tcp_groups;
using lockstep::testing::two_ranks;
using lockstep::testing::TwoBuckets;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_same_sums(const TwoBuckets& run, const TwoBuckets& dense) {
  for (std::size_t p = 0; p < 2; ++p)
    EXPECT_LT((run.sums[p] - dense.sums[p]).norm().item<double>(), 1e-3 * dense.sums[p].norm().item<double>())
        << run.parameters[p].name << " on rank " << run.group.rank() << " of " << run.group.size();
}

// One bucket of one tensor, in the first subtree.
struct OneSum {
  explicit OneSum(std::vector<float> sum) : values(std::move(sum)) {}
  void pay(compress::Debts& debts) {
    Bucket bucket{.data = {values.data(), values.size(), DType::f32}, .divisor = 2, .tensors = {&tensor, 1}};
    bucket.sums = {{.subtree = 0, .data = values.data(), .has = {1}}};
    debts.pay(bucket);
  }

  std::vector<float> values;
  BucketTensor tensor{.name = "w", .count = 2};
};

TEST(Debts, AddUpAndArePaidOnce) {
  compress::Debts debts;
  debts.add({{"owed/0/w", torch::full({2}, -1.0F)}, {"q/w", torch::ones({2})}}, true);
  debts.add({{"owed/0/w", torch::full({2}, -2.0F)}, {"server/w", torch::full({2}, -4.0F)}}, true);
  OneSum sum({1, 2});
  sum.pay(debts);
  EXPECT_EQ(sum.values, std::vector<float>({1 + 2 * 7, 2 + 2 * 7}));
  sum.pay(debts);
  EXPECT_EQ(sum.values, std::vector<float>({1 + 2 * 7, 2 + 2 * 7}));
}

TEST(Debts, OfTheMeanAreOnesAlone) {
  compress::Debts debts;
  debts.add({{"server/w", torch::full({2}, -4.0F)}}, false);
  OneSum sum({1, 2});
  sum.pay(debts);
  EXPECT_EQ(sum.values, std::vector<float>({1, 2}));
}

TEST(Debts, WaitForASumThatIsFinite) {
  compress::Debts debts;
  debts.add({{"owed/0/w", torch::full({2}, -1.0F)}}, true);
  OneSum bad({1, kInfinity}), good({1, 2});
  bad.pay(debts);
  good.pay(debts);
  EXPECT_EQ(good.values, std::vector<float>({3, 4}));
}

// onebit's second side owes too. On as many workers as subtrees, more, and fewer.
TEST(AutoDebts, OfBothSidesOfOneBitArePaid) {
  const struct { int ranks, groups, existing; } cases[] = {{2, 2, 2}, {3, 2, 2}, {3, 4, 3}};
  for (const auto& c : cases) {
    FakeLink link;
    link.byte_s = kFast;
    on_threads(
        tcp_groups(c.ranks, net::Security::plaintext, std::chrono::seconds(20)), [&](const Group& group) {
          TwoBuckets run(group, link,
                         {.method = "auto", .groups = c.groups, .max_error = 10, .probe_every = kEvery});
          TwoBuckets dense(group, link, {.method = "none"});
          Exchange::State state = run.exchange.state();
          state["auto"] = torch::full({}, 2, torch::kInt64);
          for (const char* name : {"few", "full"}) {
            state[std::string("server/") + name] = torch::zeros({96, 64});
            for (int s = 0; s < c.existing; ++s)
              state["owed/" + std::to_string(s) + "/" + name] = torch::zeros({96, 64});
          }
          run.exchange.load(state);
          run.take_steps(kEvery - 1);
          EXPECT_EQ(run.chosen(), "onebit onebit");
          EXPECT_GT(run.exchange.state().at("server/full").norm().item<double>(), 1);
          run.step();
          EXPECT_EQ(run.chosen(), kNone);
          dense.take_steps(kEvery);
          expect_same_sums(run, dense);
        });
  }
}

// As a run does that is resumed there.
TEST(AutoRebind, PaysWhatIsOwedWhereMemoryIsShared) {
  FakeLink link;
  const std::vector<Group> shared = thread_groups(2);
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10}), dense(group, link, {.method = "none"});
    run.take_steps(kFirstChoice + 3);
    const std::string chosen = run.chosen();
    EXPECT_GT(run.exchange.state().at("owed/0/full").norm().item<double>(), 1);
    run.rebind(shared[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(run.chosen(), chosen);
    run.step();
    EXPECT_EQ(run.exchange.figures().about, "auto: none; the workers share their memory");
    dense.take_steps(kFirstChoice + 4);
    expect_same_sums(run, dense);
  });
}

// A run that was resumed and ends at once, where there is nothing to choose.
TEST(AutoState, IsWholeBeforeTheNextStep) {
  FakeLink link;
  Exchange::State state;
  const CompressOptions options{.method = "auto", .max_error = 10};
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, options);
    run.take_steps(kFirstChoice + 3);
    const Exchange::State own = run.exchange.state();
    if (group.rank() != 0) return;
    for (const auto& [name, tensor] : own) state[name] = tensor.clone();
  });
  on_threads(thread_groups(2), [&](const Group& group) {
    TwoBuckets run(group, link, options), later(group, link, options);
    const Exchange::State fresh = later.exchange.state();
    run.exchange.load(state);
    later.exchange.load(run.exchange.state());
    run.step();
    later.step();
    for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(torch::equal(run.last[p], later.last[p])) << p;
    // Of a run that has not chosen, over what has: nothing is left of it.
    run.exchange.load(state);
    run.exchange.load(fresh);
    run.step();
    later.step();
    for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(torch::equal(run.last[p], later.last[p])) << p;
  });
}

TEST(AutoState, OfOtherTypesIsRefused) {
  FakeLink link;
  on_threads(thread_groups(2), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .lanes = 2});
    const auto refusal = [&](const char* key, const torch::Tensor& value) -> std::string {
      Exchange::State state = run.exchange.state();
      state[key] = value;
      try {
        run.exchange.load(state);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "nothing was refused";
    };
    EXPECT_EQ(refusal("auto", torch::full({2}, std::numeric_limits<float>::quiet_NaN())),
              "the state of the exchange has 'auto' of Float; accepted: whole numbers, Long");
    EXPECT_EQ(refusal("groups", torch::zeros({2}, torch::kInt64)),
              "the state of the exchange has 'groups' of 2 × Long; accepted: one whole number, Long");
  });
}

// Zeros are off by nothing under any method, which says nothing of the gradients that come.
TEST(AutoProbe, GoesByOthersWhereGradientsAreZero) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 0.05});
    run.few_is_zero = true;
    run.take_steps(kFirstChoice);
    EXPECT_TRUE(keeps_few_bits(run.chosen().substr(0, run.chosen().find(' ')))) << run.chosen();
  });
}

// As under a loss scale that is too large at first.
TEST(AutoProbe, LooksOnUntilSomethingIsFinite) {
  FakeLink link;
  on_threads(two_ranks(), [&](const Group& group) {
    TwoBuckets run(group, link, {.method = "auto", .max_error = 10, .probe_every = 0});
    run.factor = kInfinity;
    run.take_steps(kFirstChoice - 1);
    run.factor = 1;
    run.step();
    EXPECT_EQ(run.chosen(), "-2 -2");
    run.take_steps(compress::Chooser::kProbes + 1);
    EXPECT_EQ(run.chosen().find('-'), std::string::npos) << run.chosen();
  });
}

}  // namespace
}  // namespace lockstep
