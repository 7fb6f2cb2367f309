// A worker of peer_death_test.py: rank 1 is killed in the middle of its second backward. The others say what
// backward(), and whatever comes after it, throws, and after how long.
//
//   peer_death [METHOD GROUPS]    whose gradients are compressed by METHOD
#include <torch/optim/sgd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/compress/compress.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace {

using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;

template <class Body>
void say(const char* what, Body&& body) {
  const std::int64_t begin = lockstep::now_ns();
  try {
    body();
    std::printf("%s: nothing\n", what);
  } catch (const lockstep::PeerError& error) {
    std::printf("%s: PeerError after %.3f s: %s\n", what,
                static_cast<double>(lockstep::now_ns() - begin) * 1e-9, error.what());
  } catch (const std::exception& error) {
    std::printf("%s: another error: %s\n", what, error.what());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  // The launcher's comes soon after the death: on a busy machine before this one has spoken.
  std::signal(SIGTERM, SIG_IGN);
  auto world = lockstep::init();
  auto net = std::make_shared<SmallNet>();
  lockstep::StrategyOptions options{.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4};
  if (argc > 2) options.exchange = lockstep::compressed({.method = argv[1], .groups = std::atoi(argv[2])});
  lockstep::DataParallel ddp(net, world, options);
  lockstep::SGD optimizer(ddp, {.lr = 0.1});
  const auto backward = [&](int step) { net->forward(small_batch(world.rank(), step)).mean().backward(); };
  backward(0);
  optimizer.step();
  if (ddp.exchange().momenta) ddp.exchange().momenta->begin_momenta();
  // The gradient of the first layer comes last: buckets have left by then.
  if (world.rank() == 1) net->first->weight.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  say("backward", [&] { backward(1); });
  say("step", [&] { optimizer.step(); });
  return 3;
}
