// Calls of an exchange come in one order on every rank.
#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;

// Two methods whose second calls begin where their first end. Four workers share two subtrees, so all of it
// begins on a group's thread; what travels as it is takes that thread so long that first calls end meanwhile.
TEST(SecondCalls, OfTwoRulesHaveOneOrder) {
  on_threads(thread_groups(4), [](const Group& group) {
    const Exchange exchange = compressed({.method = "a=powersgd:rank=1:min=0,b=powersgd:rank=2:min=0",
                                          .groups = 2})(Exchange::Leaves::everything);
    const std::vector<NamedTensor> parameters = {{"a", torch::ones({16, 16}).requires_grad_()},
                                                 {"b", torch::ones({16, 16}).requires_grad_()},
                                                 {"c", torch::ones({1 << 18}).requires_grad_()}};
    Reducer reducer(parameters, group, {.first_bucket_bytes = 8 << 20, .exchange = exchange});
    for (int step = 0; step < 150; ++step) {
      torch::Tensor loss = torch::zeros({});
      for (const auto& [name, tensor] : parameters) {
        tensor.mutable_grad() = torch::Tensor();
        loss = loss + (tensor * static_cast<float>(group.rank() + step)).sum();
      }
      loss.backward();
    }
  });
}

}  // namespace
}  // namespace lockstep
