// The engine ipc where there is no GPU: threads as ranks, on streams whose order is drawn (card.cc).
#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "cuda/device_grid.h"
#include "cuda/gpu.h"

namespace lockstep {
namespace {

class EmulatedIpc : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EmulatedIpc, ::testing::Values(1, 2, 3));

TEST_P(EmulatedIpc, EveryCollectiveHasTheReferencesBits) {
  const InitOptions options{.timeout = std::chrono::seconds(60), .device = Device::Kind::cuda};
  testing::on_threads(thread_groups(GetParam(), options), [](const Group& g) {
    const auto result = testing::run_device_grid(
        g, {.counts = {0, 1, 1027}, .dtypes = {DType::f32, DType::bf16, DType::i32}});
    EXPECT_EQ(result.problem, "");
    EXPECT_GT(result.checks, 100U);
  });
}

}  // namespace
}  // namespace lockstep
