// A worker whose gradients don't come: the others say which parameters they wait for. Threads as ranks.
#include <cstdlib>

#include "comm/stall_cases.h"
#include "lockstep/parallel/data_parallel.h"
#include "parallel/small_net.h"

namespace lockstep {
namespace {

using lockstep::testing::LogLines;
using lockstep::testing::on_threads;
using lockstep::testing::small_batch;
using lockstep::testing::SmallNet;
using lockstep::testing::wait_for_line;

TEST(Stall, InBackwardNamesTheBucketAndItsParameters) {
  ::setenv("LOCKSTEP_WARN_AFTER_S", "0.3", 1);
  const LogLines lines;
  // Lines about calls before that come where a rank was late there.
  const std::string bucket = " of group world, in front of bucket 1 of 1 (second.bias … first.weight)";
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(60)}), [&](const Group& world) {
    auto net = std::make_shared<SmallNet>();
    DataParallel ddp(net, world);
    torch::Tensor out = net->forward(small_batch(world.rank(), 0));
    if (world.rank() == 1)
      out.register_hook([&](const torch::Tensor& grad) {
        wait_for_line(lines, "rank 0 has waited ", bucket);
        return grad;
      });
    out.square().mean().backward();
  });
  ::unsetenv("LOCKSTEP_WARN_AFTER_S");
  const std::vector<std::string> said = lines.with(bucket);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said[0].starts_with("rank 0 has waited ")) << said[0];
  EXPECT_NE(said[0].find(" s for rank 1 (last seen in operation "), std::string::npos) << said[0];
}

}  // namespace
}  // namespace lockstep
