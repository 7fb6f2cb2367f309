// DataParallel::rebind: a run goes on with other members.
#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/alike_on.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::alike_on;
using lockstep::testing::copies;
using lockstep::testing::equal;
using lockstep::testing::expect_error;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

// Steps first … last - 1 of a run of four lanes, as `group` carries them.
void four_lanes(const Group& group, SmallNet& net, DataParallel& ddp, Optimizer& optimizer, int first,
                int last) {
  const LaneRange mine = lanes_of(group.rank(), group.size(), 4);
  for (int step = first; step < last; ++step) {
    for (int lane = mine.first; lane < mine.first + mine.count; ++lane) {
      const auto scope = ddp.lane({.step = step,
                                   .index = lane,
                                   .total_weight = 4,
                                   .first = lane == mine.first,
                                   .last = lane + 1 == mine.first + mine.count});
      net.forward(small_batch(lane, step)).square().mean().backward();
    }
    optimizer.step();
  }
}

std::vector<torch::Tensor> alone_for(int steps) {
  SmallNet net;
  const Group group = thread_groups(1)[0];
  DataParallel ddp(net, group);
  AdamW optimizer(ddp, {.lr = 0.05});
  four_lanes(group, net, ddp, optimizer, 0, steps);
  return copies(net);
}

TEST(Rebind, GoesOnWithFewerWithTheSameBits) {
  const auto expected = alone_for(6);
  for (const int left : {1, 2, 3}) {
    on_threads(thread_groups(4), [&](const Group& world) {
      SmallNet net;
      DataParallel ddp(net, world);
      AdamW optimizer(ddp, {.lr = 0.05});
      four_lanes(world, net, ddp, optimizer, 0, 3);
      const Group staying = world.split(world.rank() < left ? 0 : -1);
      if (!staying) return;
      ddp.rebind(staying);
      EXPECT_EQ(ddp.group().size(), left);
      four_lanes(staying, net, ddp, optimizer, 3, 6);
      ddp.check_replicas();
      EXPECT_TRUE(equal(copies(net), expected)) << left << " of four";
    });
  }
}

// What is half done when the others go is forgotten: the step is done again.
TEST(Rebind, ForgetsAnUnfinishedStep) {
  const auto expected = alone_for(4);
  on_threads(thread_groups(2), [&](const Group& world) {
    SmallNet net;
    DataParallel ddp(net, world);
    AdamW optimizer(ddp, {.lr = 0.05});
    four_lanes(world, net, ddp, optimizer, 0, 2);
    {
      const auto scope =
          ddp.lane({.step = 2, .index = world.rank() * 2, .total_weight = 4, .first = true, .last = false});
      net.forward(small_batch(world.rank() * 2, 2)).square().mean().backward();
    }
    const Group staying = world.split(world.rank() == 0 ? 0 : -1);
    if (!staying) return;
    ddp.rebind(staying);
    four_lanes(staying, net, ddp, optimizer, 2, 4);
    EXPECT_TRUE(equal(copies(net), expected));
  });
}

TEST(Rebind, WhoJoinsGetsTheModelOfRankZero) {
  const auto expected = alone_for(5);
  const auto together = alike_on(thread_groups(3), [&](const Group& world) {
    SmallNet net;
    const Group first = world.split(world.rank() < 2 ? 0 : 1);
    DataParallel ddp(net, first);
    AdamW optimizer(ddp, {.lr = 0.05});
    if (world.rank() < 2) four_lanes(first, net, ddp, optimizer, 0, 3);
    StateDict state = optimizer.state_dict();
    for (const auto& [name, tensor] : state)
      world.broadcast(Buffer{tensor.data_ptr(), static_cast<std::size_t>(tensor.nbytes()), DType::u8}, 0);
    optimizer.load_state_dict(state);
    ddp.rebind(world);
    four_lanes(world, net, ddp, optimizer, 3, 5);
    return copies(net);
  });
  EXPECT_TRUE(equal(together, expected));
}

// The new group's members have other models: all are told, and each goes on in its old group.
TEST(Rebind, ThatFailsLeavesTheOldGroup) {
  on_threads(thread_groups(2), [&](const Group& world) {
    SmallNet net;
    const Group alone = world.split(world.rank());
    DataParallel ddp(net, alone);
    AdamW optimizer(ddp, {.lr = 0.05});
    four_lanes(alone, net, ddp, optimizer, 0, 2);
    if (world.rank() == 1) net.second->register_buffer("more", torch::zeros({1}));
    expect_error<MismatchError>([&] { ddp.rebind(world); }, {"the models differ", "more"});
    EXPECT_EQ(ddp.group().size(), 1);
    four_lanes(alone, net, ddp, optimizer, 2, 4);
    std::vector<torch::Tensor> now = copies(net);
    const auto expected = alone_for(4);
    now.resize(expected.size());  // without the buffer that came
    EXPECT_TRUE(equal(now, expected));
  });
}

TEST(Rebind, WithOtherTrainedParametersIsRefused) {
  const Group alone = thread_groups(1)[0];
  SmallNet net;
  net.second->bias.set_requires_grad(false);
  DataParallel ddp(net, alone);
  net.second->bias.set_requires_grad(true);
  expect_error<UsageError>([&] { ddp.rebind(alone); }, {"'second.bias'", "was frozen", "new DataParallel"});
  net.second->bias.set_requires_grad(false);
  net.first->bias.set_requires_grad(false);
  expect_error<UsageError>([&] { ddp.rebind(alone); }, {"'first.bias'", "not trained any more"});
  net.first->bias.set_requires_grad(true);
  ddp.rebind(alone);
}

}  // namespace
}  // namespace lockstep
