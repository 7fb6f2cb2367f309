// The runtime of GPUs against what lockstep/comm/device.h promises.
#include "comm/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <thread>

#include "cuda/gpu.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using testing::Bytes;
using testing::download;
using testing::kGpu;
using testing::sync;
using testing::upload;

std::size_t free_bytes() {
  std::size_t left = 0;
  std::size_t whole = 0;
  EXPECT_EQ(cudaMemGetInfo(&left, &whole), cudaSuccess);
  return left;
}

TEST(CudaRuntime, MemoryIsZeroAndKeepsWhatIsWritten) {
  LOCKSTEP_NEEDS_GPU();
  DeviceRuntime& runtime = runtime_of(kGpu);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{12345}, std::size_t{8} << 20}) {
    const auto memory = runtime.allocate(bytes, 0);
    EXPECT_NE(memory, nullptr);
    EXPECT_EQ(download(memory.get(), bytes), Bytes(bytes));
    Bytes host(bytes);
    for (std::size_t i = 0; i < bytes; ++i) host[i] = static_cast<std::byte>(i * 7);
    upload(memory.get(), host.data(), bytes);
    EXPECT_EQ(download(memory.get(), bytes), host);
    runtime.fill(memory.get(), std::byte{5}, bytes, runtime.current_stream(0));
    EXPECT_EQ(download(memory.get(), bytes), Bytes(bytes, std::byte{5}));
  }
}

TEST(CudaRuntime, EachThreadHasAStreamAndEventsOrderThem) {
  LOCKSTEP_NEEDS_GPU();
  DeviceRuntime& runtime = runtime_of(kGpu);
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const auto a = runtime.allocate(kBytes, 0);
  const auto b = runtime.allocate(kBytes, 0);
  void* const mine = runtime.current_stream(0).handle;
  for (int value = 1; value < 20; ++value) {
    runtime.fill(a.get(), static_cast<std::byte>(value), kBytes, runtime.current_stream(0));
    const DeviceEvent filled = runtime.record(runtime.current_stream(0));
    DeviceEvent copied;
    std::thread([&] {
      runtime.use_own_stream(0);
      const DeviceStream other = runtime.current_stream(0);
      EXPECT_NE(other.handle, mine);
      runtime.wait(other, filled);
      runtime.copy(b.get(), a.get(), kBytes, other);
      copied = runtime.record(other);
    }).join();
    runtime.wait(runtime.current_stream(0), copied);
    const Bytes last = download(static_cast<std::byte*>(b.get()) + kBytes - 8, 8);
    EXPECT_EQ(last, Bytes(8, static_cast<std::byte>(value)));
    EXPECT_TRUE(runtime.passed(copied));
  }
}

TEST(CudaRuntime, WaitingOnTheHostGivesUpInTime) {
  LOCKSTEP_NEEDS_GPU();
  DeviceRuntime& runtime = runtime_of(kGpu);
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const auto memory = runtime.allocate(kBytes, 0);
  for (int i = 0; i < 400; ++i)  // some hundred milliseconds
    runtime.fill(memory.get(), static_cast<std::byte>(i), kBytes, runtime.current_stream(0));
  const DeviceEvent end = runtime.record(runtime.current_stream(0));
  EXPECT_FALSE(runtime.wait_on_host(end, std::chrono::milliseconds(5)));
  EXPECT_TRUE(runtime.wait_on_host(end, std::chrono::seconds(60)));
  EXPECT_TRUE(runtime.passed(end));
}

TEST(CudaRuntime, MemoryThatIsGivenBackGoesWhenTheStreamsAreDone) {
  LOCKSTEP_NEEDS_GPU();
  DeviceRuntime& runtime = runtime_of(kGpu);
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  runtime.allocate(1, 0);
  sync();
  const std::size_t before = free_bytes();
  auto memory = runtime.allocate(kBytes, 0);
  auto small = runtime.allocate(4, 0);
  for (int i = 0; i < 50; ++i) {
    runtime.fill(memory.get(), static_cast<std::byte>(i), kBytes, runtime.current_stream(0));
    runtime.copy(small.get(), memory.get(), 4, runtime.current_stream(0));
  }
  memory = nullptr;  // while the streams work on it
  EXPECT_EQ(download(small.get(), 4), Bytes(4, std::byte{49}));
  (void)runtime.record(runtime.current_stream(0));  // whatever is over goes with the next call
  EXPECT_GE(free_bytes() + (std::size_t{64} << 20), before);
}

TEST(CudaRuntime, MemoryThatThereIsNotIsSaidWithWhatTakesTheRest) {
  LOCKSTEP_NEEDS_GPU();
  try {
    runtime_of(kGpu).allocate(std::size_t{1} << 50, 0);
    FAIL() << "there are no such GPUs";
  } catch (const SystemError& error) {
    for (const char* part :
         {"1125899906842624 bytes", "cuda:0", "are free", "comm memory of this process has"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_EQ(download(runtime_of(kGpu).allocate(16, 0).get(), 16), Bytes(16));  // and all goes on
}

TEST(CudaRuntime, ADeviceThatThereIsNotIsNamed) {
  LOCKSTEP_NEEDS_GPU();
  try {
    runtime_of(kGpu).allocate(16, 999);
    FAIL() << "there is no such GPU";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:999"), std::string::npos) << error.what();
  }
}

TEST(CudaEngines, ThatKnowNoGpusAreRefusedAtOnce) {  // without a GPU, too
  const Group world = thread_groups(1)[0];
  float* const nowhere = reinterpret_cast<float*>(16);
  try {
    world.all_reduce(Buffer{nowhere, 4, DType::f32, kGpu});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the shm engine does not work on cuda:0"), std::string::npos)
        << error.what();
  }
}

TEST(CudaEngines, AutoIsIpcForThreadsOnGpus) {
  const Group world = thread_groups(1, {.device = Device::Kind::cuda})[0];
  EXPECT_STREQ(world.engine(), "ipc");
  EXPECT_EQ(world.all_reduce(3), 3);  // host memory goes to the carrier
}

}  // namespace
}  // namespace lockstep
