// Threads as ranks that must end with the same tensors.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "comm/thread_ranks.h"
#include "parallel/small_net.h"

namespace lockstep::testing {

// What `body(group)` returns, its model's tensors: those of every rank, which are alike.
template <class Body>
std::vector<torch::Tensor> alike_on(std::vector<Group> groups, const Body& body) {
  std::vector<std::vector<torch::Tensor>> results(groups.size());
  on_threads(std::move(groups),
             [&](const Group& g) { results[static_cast<std::size_t>(g.rank())] = body(g); });
  for (const auto& result : results) EXPECT_TRUE(equal(result, results[0]));
  return results[0];
}

}  // namespace lockstep::testing
