#include "optim/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep {
namespace {

TEST(Layout, StateLiesInOneAllocationAKindAndAType) {
  const std::vector<torch::Tensor> parameters = {
      torch::ones({3}), torch::ones({2, 5}, torch::kDouble),
      torch::ones({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast),
      torch::ones({6, 6}).slice(1, 0, 3)};
  const auto state = allocate_state(parameters, 2);
  ASSERT_EQ(state.size(), 4U);
  for (const std::size_t kind : {0, 1}) {
    EXPECT_EQ(state[0][kind].storage().data(), state[2][kind].storage().data());
    EXPECT_EQ(state[0][kind].storage().data(), state[3][kind].storage().data());
    EXPECT_NE(state[0][kind].storage().data(), state[1][kind].storage().data());
    EXPECT_EQ(state[2][kind].strides(), parameters[2].strides());
    EXPECT_TRUE(state[3][kind].is_contiguous());  // the parameter has holes
    for (const auto& tensors : state) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensors[kind].data_ptr()) % 64, 0U);
      EXPECT_EQ(tensors[kind].abs().sum().item<double>(), 0);
    }
  }
  EXPECT_NE(state[0][0].storage().data(), state[0][1].storage().data());
  state[0][0].fill_(5);  // no neighbour is touched
  EXPECT_EQ(state[2][0].abs().sum().item<double>(), 0);
  EXPECT_EQ(state[3][0].abs().sum().item<double>(), 0);
}

TEST(Layout, TouchesNothingWhereTheOrderIsOneAlready) {
  const auto p = torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto g = torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto state = allocate_state({p}, 1)[0];
  const Arrays arrays(p, g, state);
  EXPECT_EQ(arrays.parameter(), p.data_ptr());
  EXPECT_EQ(arrays.gradient(), g.data_ptr());
  EXPECT_EQ(arrays.state(0), state[0].data_ptr());
  EXPECT_EQ(arrays.state(1), nullptr);
}

// However parameter and gradient lie in memory, the numbers are those of contiguous ones.
void expect_as_contiguous(const torch::Tensor& parameter, const torch::Tensor& gradient) {
  const auto plain = parameter.clone(torch::MemoryFormat::Contiguous).set_requires_grad(true);
  const auto laid = parameter.detach().set_requires_grad(true);
  Adam expected({{"p", plain}}, {.weight_decay = 0.1});
  Adam ours({{"p", laid}}, {.weight_decay = 0.1});
  for (int step = 0; step < 3; ++step) {
    plain.mutable_grad() = gradient.contiguous();
    laid.mutable_grad() = gradient;
    expected.step();
    ours.step();
  }
  EXPECT_TRUE(torch::equal(plain, laid));
  const auto a = expected.state_dict(), b = ours.state_dict();
  for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
}

TEST(Layout, EveryMixOfStrides) {
  torch::manual_seed(1);
  const auto last = torch::MemoryFormat::ChannelsLast;
  const auto make = [] { return torch::randn({4, 3, 5, 7}); };
  expect_as_contiguous(make(), make());
  expect_as_contiguous(make().contiguous(last), make().contiguous(last));
  expect_as_contiguous(make().contiguous(last), make());
  expect_as_contiguous(make(), make().contiguous(last));
  expect_as_contiguous(torch::randn({5, 9}).t(), torch::randn({9, 5}));
  expect_as_contiguous(torch::randn({9, 5}), torch::ones({1}).expand({9, 5}));  // as from sum().backward()
  expect_as_contiguous(torch::randn({9, 10}).slice(1, 2, 7), torch::randn({9, 5}));
  expect_as_contiguous(torch::randn({9, 10}).slice(1, 2, 7), torch::randn({9, 10}).slice(1, 2, 7));
}

TEST(Layout, LeavesTheHolesOfAParameterAlone) {
  const auto whole = torch::ones({4, 10});
  const auto p = whole.slice(1, 3, 6).set_requires_grad(true);
  p.mutable_grad() = torch::ones({4, 3});
  SGD({{"p", p}}, {.lr = 0.5}).step();
  EXPECT_EQ(whole.sum().item<float>(), 40 - 12 * 0.5F);
  EXPECT_EQ(whole.slice(1, 0, 3).sum().item<float>(), 12);
}

// A module moved to another memory format after the optimizer was made.
TEST(Layout, ParameterRelaidLater) {
  torch::manual_seed(2);
  const auto p = torch::randn({4, 3, 5, 7}).set_requires_grad(true);
  const auto plain = p.detach().clone().set_requires_grad(true);
  SGD ours({{"p", p}}, {.lr = 0.1, .momentum = 0.9}), expected({{"p", plain}}, {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 4; ++step) {
    if (step == 2) p.set_data(p.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    const auto g = torch::randn({4, 3, 5, 7});
    p.mutable_grad() = step == 3 ? g.contiguous(torch::MemoryFormat::ChannelsLast) : g;
    plain.mutable_grad() = g;
    ours.step();
    expected.step();
  }
  EXPECT_TRUE(torch::equal(p, plain));
}

}  // namespace
}  // namespace lockstep
