// What DataParallel takes as a model: a shared_ptr, a holder, one on the stack; and who keeps it alive.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
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

struct HeldNetImpl : SmallNet {};
TORCH_MODULE(HeldNet);

using Tensors = std::vector<torch::Tensor>;

// Three steps of a plain loop on every rank; rank 0's result.
template <class Model>
Tensors three_steps(const Group& group, Model& model, DataParallel& ddp,
                    const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  EXPECT_EQ(&ddp.module(), static_cast<torch::nn::Module*>(&model));
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    forward(small_batch(group.rank(), step)).square().mean().backward();
    optimizer.step();
  }
  ddp.check_replicas();
  return copies(model);
}

TEST(Modules, OfEveryKindGiveTheSameBits) {
  for (const int workers : {1, 2, 3, 4}) {
    const Tensors shared = alike_on(thread_groups(workers), [](const Group& g) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(net, g);
      return three_steps(g, *net, ddp, [&](const auto& x) { return net->forward(x); });
    });
    const Tensors held = alike_on(thread_groups(workers), [](const Group& g) {
      HeldNet net;
      DataParallel ddp(net, g);
      return three_steps(g, *net, ddp, [&](const auto& x) { return net->forward(x); });
    });
    const Tensors on_stack = alike_on(thread_groups(workers), [](const Group& g) {
      SmallNet net;
      DataParallel ddp(net, g, {.bucket_cap_mb = 1e-4});
      return three_steps(g, net, ddp, [&](const auto& x) { return net.forward(x); });
    });
    const Tensors by_reference = alike_on(thread_groups(workers), [](const Group& g) {
      auto net = std::make_shared<SmallNet>();
      DataParallel ddp(*net, g);
      return three_steps(g, *net, ddp, [&](const auto& x) { return net->forward(x); });
    });
    EXPECT_TRUE(equal(held, shared));
    EXPECT_TRUE(equal(on_stack, shared));
    EXPECT_TRUE(equal(by_reference, shared));
  }
}

TEST(Modules, ASequentialAndALayerAreHolders) {
  alike_on(thread_groups(2), [](const Group& g) {
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Linear(4, 2));
    DataParallel ddp(net, g);
    torch::nn::Linear layer(2, 1);
    DataParallel second(layer, g);
    three_steps(g, *net, ddp, [&](const auto& x) { return net->forward(x); });
    return three_steps(g, *layer, second, [&](const auto& x) { return layer->forward(x.narrow(1, 0, 2)); });
  });
}

TEST(Modules, AreKeptAliveByWhoeverOwnsThem) {
  const Group alone = thread_groups(1)[0];
  auto net = std::make_shared<SmallNet>();
  const std::weak_ptr<SmallNet> watched = net;
  {
    const DataParallel ddp(*net, alone);  // by reference, though a shared_ptr owns it
    net.reset();
    EXPECT_FALSE(watched.expired());
    EXPECT_FALSE(ddp.module().parameters().empty());
  }
  EXPECT_TRUE(watched.expired());
  SmallNet on_stack;
  { const DataParallel ddp(on_stack, alone); }
  EXPECT_EQ(on_stack.forward(small_batch(0, 0)).size(1), 3);  // nobody has destroyed it
}

TEST(Modules, ThatAreNoneAreRefused) {
  const Group alone = thread_groups(1)[0];
  const HeldNet empty(nullptr);
  expect_error<UsageError>([&] { DataParallel(empty, alone); }, {"no module"});
  expect_error<UsageError>([&] { DataParallel(std::shared_ptr<SmallNet>(), alone); }, {"no module"});
}

static_assert(!std::is_constructible_v<DataParallel, SmallNet, Group>);  // a temporary would be gone

}  // namespace
}  // namespace lockstep
