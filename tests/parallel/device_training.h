// What tests of training on the test device share: a layer, a lane's step, and the comparison with ddp.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "lockstep/parallel/strategies.h"
#include "parallel/torch_test_device.h"
#include "parallel/waves.h"

namespace lockstep::testing {

using Tensors = std::vector<torch::Tensor>;

struct DeviceLayer : torch::nn::Module {
  DeviceLayer(int in, int out, torch::Device device) {
    weight = register_parameter("weight", waves({in, out}, 2.0 * out + in).to(device));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(x.mm(weight)); }
  torch::Tensor weight;
};

// The lanes of one step that are this worker's, of so many in all.
template <class Net>
void train_lanes(const Group& g, Strategy& strategy, Net& net, torch::Device device, int lanes, int step,
                 torch::ScalarType type = torch::kFloat32) {
  const LaneRange mine = lanes_of(g.rank(), g.size(), lanes);
  for (int lane = 0; lane < mine.count; ++lane) {
    const auto scope = strategy.lane({.step = step,
                                      .index = mine.first + lane,
                                      .weight = 1,
                                      .total_weight = static_cast<double>(lanes),
                                      .first = lane == 0,
                                      .last = lane == mine.count - 1});
    const torch::Tensor x = waves({5, 6}, 7 * (mine.first + lane) + step).to(type).to(device);
    net.forward(x).pow(2).sum().backward();
  }
}

// train(group, device, plan) on `groups` of the device gives each rank what `plain` gives it on the
// processor; nothing is out of order, and the host waits for no stream, where `waits` does not say that it
// may.
template <class Plan, class Train>
void expect_bits_of_plain(const Plan& plan, const Plan& plain, const std::vector<Group>& groups,
                          const Train& train, bool waits = false) {
  const std::size_t ranks = groups.size();
  std::vector<Tensors> expected(ranks), found(ranks);
  on_threads(thread_groups(static_cast<int>(ranks)), [&](const Group& g) {
    expected[static_cast<std::size_t>(g.rank())] = train(g, torch::kCPU, plain);
  });
  const std::int64_t before = TestDevice::get().host_waits();
  on_threads(groups, [&](const Group& g) {
    found[static_cast<std::size_t>(g.rank())] = train(g, torch_test_device(g), plan);
  });
  if (!waits) {
    EXPECT_EQ(TestDevice::get().host_waits(), before);
  }
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  for (std::size_t r = 0; r < ranks; ++r) {
    ASSERT_EQ(found[r].size(), expected[r].size());
    for (std::size_t k = 0; k < expected[r].size(); ++k)
      EXPECT_TRUE(torch::equal(found[r][k], expected[r][k])) << "rank " << r << ", tensor " << k;
  }
}

}  // namespace lockstep::testing
