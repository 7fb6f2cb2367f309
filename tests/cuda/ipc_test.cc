// The engine ipc with threads as ranks, which share one GPU.
#include <cuda_runtime_api.h>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "cuda/device_grid.h"
#include "cuda/gpu.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::kGpu;
using testing::on_threads;

constexpr InitOptions kOnGpus{.timeout = std::chrono::seconds(60), .device = Device::Kind::cuda};

class Ipc : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Ipc, ::testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(Ipc, EveryCollectiveHasTheReferencesBits) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(GetParam(), kOnGpus), [](const Group& g) {
    const auto result = testing::run_device_grid(g);
    EXPECT_EQ(result.problem, "");
    EXPECT_GT(result.checks, 400U);
  });
}

// Private memory of more than one staging block of 64 MiB, of which slices take a part each.
class IpcRounds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, IpcRounds, ::testing::Values(2, 3));

TEST_P(IpcRounds, CarryLargeCalls) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(GetParam(), kOnGpus), [](const Group& g) {
    const std::size_t more = (std::size_t{8} << 20) + 3;  // of 8 bytes
    const std::size_t slice = (std::size_t{8} << 20) / static_cast<std::size_t>(g.size()) + 3;
    auto result = testing::run_device_grid(
        g, {.counts = {more},
            .dtypes = {DType::f64},
            .ops = {ReduceOp::sum},
            .collectives = {Collective::all_reduce, Collective::broadcast, Collective::all_gather}});
    EXPECT_EQ(result.problem, "");
    EXPECT_EQ(result.checks, 12U);
    result = testing::run_device_grid(
        g, {.counts = {slice},
            .dtypes = {DType::f64},
            .ops = {ReduceOp::sum},
            .collectives = {Collective::reduce_scatter, Collective::scatter, Collective::all_to_all}});
    EXPECT_EQ(result.problem, "");
    EXPECT_EQ(result.checks, 12U);
  });
}

TEST(IpcGroup, PartsOfAGroupWorkBesideIt) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(4, kOnGpus), [](const Group& g) {
    const Group half = g.split(g.rank() % 2);
    EXPECT_STREQ(half.engine(), "ipc");
    EXPECT_EQ(testing::run_device_grid(half, {.counts = {1000}, .dtypes = {DType::f32}}).problem, "");
    EXPECT_EQ(testing::run_device_grid(g, {.counts = {1000}, .dtypes = {DType::bf16}}).problem, "");
  });
}

TEST(IpcGroup, ManyCallsInARowAreInOrder) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(4, kOnGpus), [](const Group& g) {
    const std::size_t count = 1 << 20;
    const CommMemory memory = g.allocate(count * sizeof(float), kGpu);
    const std::vector<float> ones(count, 1);
    testing::upload(memory.data(), ones.data(), count * sizeof(float));
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i)
      works.push_back(
          g.all_reduce_async(Buffer{memory.data(), count, DType::f32, kGpu}, {.op = ReduceOp::avg}));
    for (const Work& work : works) work.wait();
    const testing::Bytes got = testing::download(memory.data(), count * sizeof(float));
    EXPECT_EQ(std::memcmp(got.data(), ones.data(), got.size()), 0);
  });
}

TEST(IpcGroup, RanksThatDifferAreNamed) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(2, kOnGpus), [](const Group& g) {
    const CommMemory memory = g.allocate(64, kGpu);
    const std::size_t count = g.rank() == 0 ? 4 : 8;
    expect_error<MismatchError>(
        [&] {
          g.all_reduce(Buffer{memory.data(), count, DType::f32, kGpu});
        },
        {"rank 0 called all_reduce(f32 × 4, sum, on cuda)",
         "rank 1 called all_reduce(f32 × 8, sum, on cuda)"});
  });
}

TEST(IpcGroup, MixedDevicesAreRefusedByName) {
  LOCKSTEP_NEEDS_GPU();
  on_threads(thread_groups(2, kOnGpus), [](const Group& g) {
    const CommMemory memory = g.allocate(64, kGpu);
    std::vector<float> host(4);
    const Buffer x = g.rank() == 0 ? Buffer{memory.data(), 4, DType::f32, kGpu} : buffer(host);
    expect_error<MismatchError>([&] { g.all_reduce(x); }, {"rank 0 called all_reduce(f32 × 4, sum, on cuda)",
                                                           "rank 1 called all_reduce(f32 × 4, sum)"});
  });
}

TEST(IpcGroup, ARankThatLeavesIsNoticedAndItsMemoryComesBack) {
  LOCKSTEP_NEEDS_GPU();
  std::vector<Group> groups = thread_groups(2, kOnGpus);
  const CommMemory memory = groups[0].allocate(64, kGpu);
  groups[1] = {};
  expect_error<PeerError>(
      [&] {
        groups[0].all_reduce(Buffer{memory.data(), 4, DType::f32, kGpu});
      },
      {"rank 1"});
}

TEST(IpcGroup, MemoryIsGivenBack) {
  LOCKSTEP_NEEDS_GPU();
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const auto left = [] {
    std::size_t now = 0;
    std::size_t whole = 0;
    EXPECT_EQ(cudaMemGetInfo(&now, &whole), cudaSuccess);
    return now;
  };
  on_threads(thread_groups(1, kOnGpus), [](const Group& g) { g.allocate(1, kGpu); });
  testing::sync();
  const std::size_t before = left();
  on_threads(thread_groups(4, kOnGpus), [](const Group& g) {
    for (int i = 0; i < 5; ++i) {
      const CommMemory memory = g.allocate(kBytes, kGpu);
      g.all_reduce(Buffer{memory.data(), kBytes / 4, DType::f32, kGpu});
    }
  });
  testing::sync();
  (void)runtime_of(kGpu).record(runtime_of(kGpu).current_stream(0));
  EXPECT_GE(left() + kBytes / 2, before);
}

}  // namespace
}  // namespace lockstep
