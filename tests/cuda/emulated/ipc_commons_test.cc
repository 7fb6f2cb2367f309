// Memory on a GPU that ranks have in common, and the barrier of streams that orders what they do there: on
// streams whose order is drawn (card.cc).
#include "comm/engine/ipc_commons.h"

#include <atomic>
#include <thread>

#include "comm/cuda/memory_ops.h"
#include "comm/cuda/runtime.h"
#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "cuda/emulated/card.h"
#include "cuda/gpu.h"
#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;
using testing::kGpu;
using testing::on_threads;

constexpr InitOptions kCommonCard{.timeout = std::chrono::seconds(60), .device = Device::Kind::cuda};
constexpr std::size_t kPart = 4096;

class IpcCommonsOnCard : public ::testing::TestWithParam<int> {
 protected:
  void TearDown() override { emulated::have_memory_ops(true); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, IpcCommonsOnCard, ::testing::Values(2, 3, 4));

// Each rank writes its part, all read all of it, many times over: what nobody waited for is of another time.
void write_and_read(const Group& g) {
  constexpr int kTimes = 60;
  const auto ranks = static_cast<std::size_t>(g.size());
  const auto rank = static_cast<std::size_t>(g.rank());
  ASSERT_TRUE(g.shares_device(kGpu));
  const CommMemory all = g.allocate_shared(ranks * kPart, kGpu, g.size() - 1);
  const CommMemory seen = g.allocate(kTimes * ranks * kPart, kGpu);
  CudaRuntime& runtime = CudaRuntime::get();
  const DeviceStream stream = runtime.current_stream(0);
  const auto value = [](int time, std::size_t r) { return static_cast<std::byte>(7 * time + 50 * r + 1); };
  for (int time = 0; time < kTimes; ++time) {
    for (std::size_t slow = 0; slow < 4 * rank; ++slow)
      runtime.fill(all.as<std::byte>() + rank * kPart, std::byte{0}, kPart, stream);
    runtime.fill(all.as<std::byte>() + rank * kPart, value(time, rank), kPart, stream);
    g.barrier(kGpu);
    runtime.copy(seen.as<std::byte>() + static_cast<std::size_t>(time) * ranks * kPart, all.data(),
                 ranks * kPart, stream);
    g.barrier(kGpu);
  }
  const testing::Bytes got = testing::download(seen.data(), kTimes * ranks * kPart);
  for (int time = 0; time < kTimes; ++time)
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < kPart; ++i)
        ASSERT_EQ(got[(static_cast<std::size_t>(time) * ranks + r) * kPart + i], value(time, r))
            << "time " << time << ", rank " << r;
}

TEST_P(IpcCommonsOnCard, AreOrderedByABarrierOfStreams) {
  on_threads(thread_groups(GetParam(), kCommonCard), write_and_read);
}

TEST_P(IpcCommonsOnCard, SoTheyAreWithoutMemoryOperations) {
  emulated::have_memory_ops(false);
  on_threads(thread_groups(GetParam(), kCommonCard), write_and_read);
}

// Comm memory of this process, when what is on its way back has gone.
std::size_t taken_at_rest(std::size_t least) {
  testing::sync();
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  for (;;) {
    IpcCommons::reap();
    const std::size_t taken = CudaRuntime::get().taken_bytes(0);
    if (taken <= least || deadline.passed()) return taken;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Whoever goes first; what is freed loses its content there.
TEST_P(IpcCommonsOnCard, StayUntilTheLastHasLetGo) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  ASSERT_EQ(taken_at_rest(0), 0U);
  on_threads(thread_groups(GetParam(), kCommonCard), [&](const Group& g) {
    CommMemory all = g.allocate_shared(kBytes, kGpu);
    if (g.rank() == 0)
      CudaRuntime::get().fill(all.data(), std::byte{9}, kBytes, CudaRuntime::get().current_stream(0));
    g.barrier(kGpu);
    if (g.rank() == 0) all = {};
    g.barrier();
    EXPECT_EQ(CudaRuntime::get().taken_bytes(0), kBytes);  // once, by whoever made it
    if (g.rank() != 0) {
      EXPECT_EQ(testing::download(all.data(), kBytes), testing::Bytes(kBytes, std::byte{9}));
    }
    g.barrier();
  });
  EXPECT_EQ(taken_at_rest(0), 0U);
}

// Who still computes with it as it lets go says so with a call that follows, and its maker hears of it with
// one: nobody has to allocate something else for that.
TEST_P(IpcCommonsOnCard, GoWithTheCallsThatFollow) {
  ASSERT_EQ(taken_at_rest(0), 0U);
  std::atomic<std::uint64_t> over = 0;  // what all streams wait for
  on_threads(thread_groups(GetParam(), kCommonCard), [&](const Group& g) {
    const CommMemory x = g.allocate(4, kGpu);
    g.barrier();
    const std::size_t before = CudaRuntime::get().taken_bytes(0);
    g.barrier();
    CommMemory all = g.allocate_shared(std::size_t{8} << 20, kGpu);
    cuda::wait_for_numbers(CudaRuntime::get().current_stream(0),
                           std::vector<cuda::NumberWait>{{reinterpret_cast<std::uintptr_t>(&over), 1}});
    g.barrier();
    all = {};
    g.barrier();
    over = 1;
    for (int call = 0; call < 3; ++call) {
      testing::sync();
      g.barrier();
      g.all_reduce(Buffer{x.data(), 1, DType::i32, kGpu});
    }
    testing::sync();
    g.barrier();
    EXPECT_EQ(CudaRuntime::get().taken_bytes(0), before);
    g.barrier();
  });
}

TEST(IpcCommonsBarrier, OfStreamsIsNotThatOfHosts) {
  on_threads(thread_groups(2, kCommonCard), [](const Group& g) {
    g.barrier(kGpu);
    testing::expect_error<MismatchError>([&] { g.rank() == 0 ? g.barrier() : g.barrier(kGpu); },
                                         {"rank 0 called barrier()", "rank 1 called barrier(on cuda)"});
  });
}

TEST(IpcCommonsRefusals, AreOfRanksThatDifferAndOfTooMuch) {
  on_threads(thread_groups(2, kCommonCard), [](const Group& g) {
    testing::expect_error<UsageError>([&] { (void)g.allocate_shared(g.rank() == 1 ? 9 : 8, kGpu); },
                                      {"allocate_shared: rank 0 asks for 8 bytes, rank 1 for 9"});
    testing::expect_error<SystemError>([&] { (void)g.allocate_shared(std::size_t{1} << 40, kGpu, 1); },
                                       {"allocate_shared: rank 1: no comm memory"});
    EXPECT_EQ(g.allocate_shared(8, kGpu).bytes(), 8U);  // the group goes on
    EXPECT_FALSE(g.shares_device({}));
  });
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(60)}), [](const Group& g) {
    testing::expect_error<UsageError>(
        [&] { (void)g.allocate_shared(8, kGpu); },
        {"have no memory in common on cuda:0 over shm", "accepted: ranks on one GPU, engine ipc"});
    testing::expect_error<UsageError>([&] { g.barrier(kGpu); }, {"the shm engine does not work on cuda:0"});
  });
}

}  // namespace
}  // namespace lockstep
