// Units whose forward runs again in backward: the bits of those that keep their activations.
#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "parallel/unit_models.h"

namespace lockstep {
namespace {

using testing::equal;
using testing::expect_error;
using testing::train_ddp;
using testing::train_units;
using testing::UnitNet;
using testing::UnitRun;

TEST(Recompute, HasTheSameBitsWithAndWithoutShards) {
  const auto expected = train_ddp();
  EXPECT_TRUE(equal(train_ddp({.recompute = true}), expected));
  for (const int workers : {1, 2, 3})
    EXPECT_TRUE(equal(train_units(UnitRun{.recompute = true}, workers), expected)) << workers;
}

// Gradients, buffers and the generator's state of one forward and backward.
std::vector<torch::Tensor> once(bool again) {
  UnitNet net;
  for (const auto& block : net.blocks) block->dropout = 0.3;
  if (again) net.recompute_blocks();
  torch::manual_seed(5);
  net.loss(1, 2).backward();
  std::vector<torch::Tensor> all;
  for (const auto& p : net.parameters()) all.push_back(p.grad().defined() ? p.grad() : torch::zeros({1}));
  for (const auto& b : net.buffers()) all.push_back(b);
  all.push_back(torch::rand({3}));
  return all;
}

TEST(Recompute, DrawsTheSameRandomNumbersAndCountsNothingTwice) {
  EXPECT_TRUE(equal(once(true), once(false)));
}

TEST(Recompute, RunsTheForwardTwiceAndKeepsNothingInBetween) {
  int runs = 0;
  torch::nn::Linear linear(4, 4);
  const Unit unit({linear.ptr()});
  recompute(unit);
  const auto x = torch::ones({2, 4}).requires_grad_();
  const auto forward = [&](const torch::Tensor& given) {
    ++runs;
    EXPECT_EQ(torch::GradMode::is_enabled(), runs == 2);
    return linear->forward(given).exp();
  };
  const auto y = unit.run(forward, x);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(y.grad_fn()->name(), "RecomputedUnit");
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(torch::equal(x.grad(), linear->forward(x).exp().detach().mm(linear->weight.detach())));
  {
    const torch::NoGradGuard no_grad;
    runs = 0;
    EXPECT_FALSE(unit.run(forward, x).requires_grad());
  }
}

TEST(Recompute, ATensorThatIsNeitherArgumentNorParameterIsRefused) {
  torch::nn::Linear linear(4, 4);
  const auto other = torch::ones({3, 4}).requires_grad_();
  const Unit unit({linear.ptr()});
  recompute(unit);
  const auto y =
      unit.run([&](const torch::Tensor& x) { return linear->forward(x) * other.sum(); }, torch::ones({2, 4}));
  expect_error<UsageError>([&] { y.sum().backward(); }, {"[3, 4]", "argument"});
}

TEST(Recompute, OutermostUnitsOfAModel) {
  const UnitNet net;
  EXPECT_EQ(recompute_units(net), 8);  // tok, three blocks, frozen, never, wide, head: not the inner one
}

}  // namespace
}  // namespace lockstep
