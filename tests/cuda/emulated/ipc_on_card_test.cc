// The engine ipc where there is no GPU: threads as ranks, on streams whose order is drawn (card.cc).
#include <gtest/gtest.h>

#include <atomic>

#include "comm/cuda/call_order.h"
#include "comm/cuda/memory_ops.h"
#include "comm/cuda/runtime.h"
#include "comm/cuda/streams.h"
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

// A call that fails may leave there what nobody waits for.
TEST(EmulatedMemory, GoesBackWhenAnEnginesStreamIsDoneWithIt) {
  using testing::kGpu;
  constexpr std::size_t kBytes = 1 << 20;
  cuda::CudaRuntime& runtime = cuda::CudaRuntime::get();
  const DeviceStream stream{kGpu, cuda::take_stream(0)};
  const std::shared_ptr<void> to = runtime.allocate(kBytes, 0);
  std::shared_ptr<void> from = runtime.allocate(kBytes, 0);
  const testing::Bytes expected(kBytes, std::byte{7});
  testing::upload(from.get(), expected.data(), kBytes);
  testing::sync();
  for (int i = 0; i < 300; ++i) runtime.fill(to.get(), std::byte{1}, kBytes, stream);  // it is busy
  runtime.copy(to.get(), from.get(), kBytes, stream);
  from.reset();
  ASSERT_TRUE(runtime.wait_on_host(runtime.record(stream), std::chrono::seconds(60)));
  EXPECT_EQ(testing::download(to.get(), kBytes), expected);
  cuda::give_stream(0, static_cast<cudaStream_t>(stream.handle));
}

// More calls than are remembered, none of which waits: the first one's memory is not ready before it is over.
TEST(EmulatedCallOrder, ACallThatIsNoLongerRememberedIsWaitedFor) {
  cuda::CudaRuntime& runtime = cuda::CudaRuntime::get();
  std::atomic<std::uint64_t> over = 0;
  const DeviceStream slow{testing::kGpu, cuda::take_stream(0)};
  cuda::wait_for_numbers(slow, std::vector<cuda::NumberWait>{{reinterpret_cast<std::uintptr_t>(&over), 1}});
  cuda::CallOrder order;
  const auto begin = [&](std::uintptr_t call) {
    return order.begin(runtime.current_stream(0), {}, std::vector<cuda::CallOrder::Range>{{call, call + 1}});
  };
  for (std::uintptr_t call = 1; call < 600; ++call) {
    (void)begin(call);
    order.end(std::vector<cuda::CallOrder::Range>{{call, call + 1}},
              call == 1 ? runtime.record(slow) : DeviceEvent());
  }
  EXPECT_FALSE(begin(1).ready);
  over = 1;
  ASSERT_TRUE(runtime.wait_on_host(runtime.record(begin(1).posts), std::chrono::seconds(60)));
  EXPECT_TRUE(begin(1).ready);
}

}  // namespace
}  // namespace lockstep
