// A worker of peer_death_test.py: rank 1 is killed in the middle of its second backward. The others say what
// backward(), and whatever comes after it, throws.
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace {

using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

template <class Body>
void say(const char* what, Body&& body) {
  try {
    body();
    std::printf("%s: nothing\n", what);
  } catch (const lockstep::PeerError& error) {
    std::printf("%s: PeerError: %s\n", what, error.what());
  } catch (const std::exception& error) {
    std::printf("%s: another error: %s\n", what, error.what());
  }
  std::fflush(stdout);
}

}  // namespace

int main() {
  auto world = lockstep::init();
  auto net = std::make_shared<SmallNet>();
  lockstep::DataParallel ddp(net, world, {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4});
  lockstep::SGD optimizer(ddp, {.lr = 0.1});
  const auto backward = [&](int step) { net->forward(small_batch(world.rank(), step)).mean().backward(); };
  backward(0);
  optimizer.step();
  // The gradient of the first layer comes last: buckets have left by then.
  if (world.rank() == 1) net->first->weight.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  say("backward", [&] { backward(1); });
  say("step", [&] { optimizer.step(); });
  return 3;
}
