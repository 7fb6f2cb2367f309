// What the tests of idle workers share: ranks as threads, each with a small model of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"
#include "parallel/small_net.h"

namespace lockstep::testing {

using Tensors = std::vector<torch::Tensor>;

// Every rank's model after `body(group, net)`.
inline std::vector<Tensors> on_workers(int n, const std::function<void(const Group&, SmallNet&)>& body) {
  std::vector<Tensors> results(static_cast<std::size_t>(n));
  on_threads(thread_groups(n, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    auto net = std::make_shared<SmallNet>();
    body(group, *net);
    results[static_cast<std::size_t>(group.rank())] = copies(*net);
  });
  return results;
}

inline void expect_alike(const std::vector<Tensors>& results) {
  for (const Tensors& result : results) EXPECT_TRUE(equal(result, results[0]));
}

inline torch::Tensor loss_of(SmallNet& net, int lane, int step) {
  return net.forward(small_batch(lane, step)).square().mean();
}

inline std::shared_ptr<SmallNet> borrowed(SmallNet& net) {
  return {&net, [](SmallNet*) {}};
}

}  // namespace lockstep::testing
