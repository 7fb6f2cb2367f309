// Ranks as processes on a GPU, started by `lockstep run`: device_worker WHAT, which is
//   grid       every collective against the reference
//   die        rank 1 kills itself in the middle; the others must get a typed error in time
//   mismatch   ranks call different things
//   mixed      rank 0 on the GPU, the others on host memory
//   commons    memory on the GPU that all ranks have in common (ipc): each writes its part, all read all of
//   it orphans    the same, and the rank that made it kills itself: the others must get a typed error in time
// LOCKSTEP_ENGINE says over which engine. NCCL refuses two ranks of one GPU and machine: each is told that it
// is on a machine of its own.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda/device_grid.h"
#include "cuda/gpu.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using testing::kGpu;

int grid(const Group& world) {
  auto result = testing::run_device_grid(world, {.counts = {0, 1, 17, 4099}});
  if (result.problem.empty())
    result.problem = testing::run_device_grid(world, {.counts = {(std::size_t{1} << 20) + 1},
                                                      .dtypes = {DType::f32, DType::bf16},
                                                      .ops = {ReduceOp::sum, ReduceOp::avg}})
                         .problem;
  const Group half = world.split(world.rank() % 2);
  if (result.problem.empty())
    result.problem = testing::run_device_grid(half, {.counts = {1000}, .dtypes = {DType::f32}}).problem;
  world.barrier();
  std::fprintf(result.problem.empty() ? stdout : stderr, "rank %d over %s: %zu checks: %s\n", world.rank(),
               world.engine(), result.checks, result.problem.empty() ? "all right" : result.problem.c_str());
  return result.problem.empty() && result.checks > 400 ? 0 : 1;
}

template <class Expected, class Body>
int expect(const Group& world, const char* part, Body&& body) {
  const std::int64_t begin = now_ns();
  try {
    body();
  } catch (const Error& error) {
    const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
    const bool right = dynamic_cast<const Expected*>(&error) != nullptr && seconds < 30 &&
                       std::string(error.what()).find(part) != std::string::npos;
    std::fprintf(right ? stdout : stderr, "rank %d over %s: after %.2f s %s error: %s\n", world.rank(),
                 world.engine(), seconds, to_string(error.kind()), error.what());
    return right ? 0 : 1;
  }
  std::fprintf(stderr, "rank %d: no error\n", world.rank());
  return 1;
}

int die(const Group& world) {
  ::signal(
      SIGTERM,
      SIG_IGN);  // the launcher ends the others when one is dead: not before they have said what they got
  const std::size_t count = std::size_t{16} << 20;
  const CommMemory memory = world.allocate(count * sizeof(float), kGpu);
  const Buffer x{memory.data(), count, DType::f32, kGpu};
  world.all_reduce(x);
  return expect<Error>(world, "", [&] {
    for (int i = 0; i < 10'000; ++i) {
      Work work = world.all_reduce_async(x, {.op = ReduceOp::avg});
      if (i == 20 && world.rank() == 1) {
        std::fflush(nullptr);
        ::kill(::getpid(), SIGKILL);
      }
      if (i % 10 == 0) work.wait_on_host();
      work.wait();
    }
  });
}

int mismatch(const Group& world) {
  const CommMemory memory = world.allocate(4096, kGpu);
  return expect<MismatchError>(world, "ranks called different things", [&] {
    const std::size_t count = world.rank() == 0 ? 4 : 8;
    world.all_reduce(Buffer{memory.data(), count, DType::f32, kGpu});
  });
}

int mixed(const Group& world) {
  const CommMemory memory = world.allocate(4096, kGpu);
  std::vector<float> host(4);
  return expect<MismatchError>(world, "on cuda", [&] {
    world.all_reduce(world.rank() == 0 ? Buffer{memory.data(), 4, DType::f32, kGpu} : buffer(host));
  });
}

// Some MiB a rank, so that a kernel takes long enough for others to come before it.
constexpr std::size_t kCommonPart = std::size_t{4} << 20;

// Which value that is not right is where; -1: none.
long write_and_read(const Group& world, const CommMemory& all, const CommMemory& seen, int time) {
  DeviceRuntime& runtime = runtime_of(kGpu);
  const DeviceStream stream = runtime.current_stream(0);
  const auto value = [time](std::size_t r) { return static_cast<std::byte>(7 * time + 50 * r + 1); };
  const auto rank = static_cast<std::size_t>(world.rank());
  for (int slow = 0; slow < 8 * world.rank(); ++slow)
    runtime.fill(all.as<std::byte>() + rank * kCommonPart, std::byte{0}, kCommonPart, stream);
  runtime.fill(all.as<std::byte>() + rank * kCommonPart, value(rank), kCommonPart, stream);
  world.barrier(kGpu);
  runtime.copy(seen.data(), all.data(), all.bytes(), stream);
  world.barrier(kGpu);
  const testing::Bytes got = testing::download(seen.data(), all.bytes());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != value(i / kCommonPart)) return static_cast<long>(i);
  return -1;
}

int commons(const Group& world, bool dies) {
  if (!world.shares_device(kGpu)) {
    std::fprintf(stderr, "rank %d: the ranks share no device over %s\n", world.rank(), world.engine());
    return 1;
  }
  if (dies) ::signal(SIGTERM, SIG_IGN);
  const std::size_t bytes = static_cast<std::size_t>(world.size()) * kCommonPart;
  CommMemory all = world.allocate_shared(bytes, kGpu, /*maker=*/1);
  const CommMemory seen = world.allocate(bytes, kGpu);
  const auto times = [&] {
    for (int time = 0; time < 40; ++time) {
      if (dies && time == 20 && world.rank() == 1) {
        std::fflush(nullptr);
        ::kill(::getpid(), SIGKILL);
      }
      if (const long wrong = write_and_read(world, all, seen, time); wrong >= 0)
        throw SystemError("time " + std::to_string(time) + ": byte " + std::to_string(wrong) +
                          " is not right");
    }
  };
  if (dies) return expect<Error>(world, "", times);
  times();
  if (world.rank() == 1) all = {};  // what it made is the others' still
  world.barrier();
  if (world.rank() != 1) (void)testing::download(all.data(), bytes);
  world.barrier();
  std::fprintf(stdout, "rank %d over %s: all right\n", world.rank(), world.engine());
  return 0;
}

int run(const std::string& what) {
  const Group world = init({.timeout = std::chrono::seconds(20), .device = Device::Kind::cuda});
  if (what == "grid") return grid(world);
  if (what == "die") return die(world);
  if (what == "mismatch") return mismatch(world);
  if (what == "mixed") return mixed(world);
  if (what == "commons" || what == "orphans") return commons(world, what == "orphans");
  std::fprintf(stderr, "device_worker '%s'; accepted: grid, die, mismatch, mixed, commons, orphans\n",
               what.c_str());
  return 2;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::string why;
  if (lockstep::cuda::device_count(&why) == 0) {
    std::printf("no GPU here: %s\n", why.c_str());
    return 77;  // ctest: skipped
  }
  const int rank = lockstep::Identity::from_environment().rank;
  ::setenv("NCCL_HOSTID", ("lockstep-test-" + std::to_string(rank)).c_str(), 0);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  try {
    return lockstep::run(argc > 1 ? argv[1] : "grid");
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "rank %d: %s error: %s\n", rank, lockstep::to_string(error.kind()), error.what());
    return 1;
  }
}
