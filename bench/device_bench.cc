// all_reduce of f32 on GPUs, over the engine that LOCKSTEP_ENGINE names, beside the floor: the bytes that
// must move over the bandwidth that a copy on the card has. Three lines of JSON a size, from rank 0:
//
//   in flight      calls on buffers of their own, all made at once: the buckets of a step
//   in a row       calls on one buffer, all made at once: each comes after the one before
//   one at a time  each is made when the host has seen the end of the one before
//
//   for e in ipc nccl; do LOCKSTEP_ENGINE=$e lockstep run -n 4 -- device_bench [MiB …]; done
//
// host_seconds is what a call takes until it has been put on the streams, on the slowest rank.
// The floor is for ranks that share one GPU: n·S bytes are read and n·S written, whoever does it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/cuda/check.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/device.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr int kRounds = 7;  // of which the median counts
constexpr double kRoundSeconds = 0.3;

void sync() {
  DeviceRuntime& runtime = runtime_of(kGpu);
  if (!runtime.wait_on_host(runtime.record(runtime.current_stream(0)), std::chrono::seconds(120)))
    throw SystemError("the stream has not ended within 120 s");
}

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

// Bytes that a second moves, read and written ones counted: rank 0 alone, while the others wait.
double copy_bandwidth() {
  DeviceRuntime& runtime = runtime_of(kGpu);
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const auto a = runtime.allocate(kBytes, 0);
  const auto b = runtime.allocate(kBytes, 0);
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    sync();
    const std::int64_t begin = now_ns();
    for (int i = 0; i < 10; ++i) runtime.copy(b.get(), a.get(), kBytes, runtime.current_stream(0));
    sync();
    seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9 / 10);
  }
  return 2.0 * kBytes / median(seconds);
}

enum class Calls { in_flight, in_a_row, one_at_a_time };
const char* name_of(Calls calls) {
  return calls == Calls::in_flight ? "in flight" : calls == Calls::in_a_row ? "in a row" : "one at a time";
}

// Seconds a call: until all have ended, and until all have been put on the streams.
struct Took {
  double ended;
  double host;
};

Took once(const Group& world, const std::vector<Buffer>& buffers, std::size_t calls, Calls how) {
  sync();
  world.barrier();
  const std::int64_t begin = now_ns();
  const auto since = [&] {
    return static_cast<double>(now_ns() - begin) * 1e-9 / static_cast<double>(calls);
  };
  std::vector<Work> works;
  for (std::size_t i = 0; i < calls; ++i) {
    works.push_back(world.all_reduce_async(buffers[i % buffers.size()], {.op = ReduceOp::avg}));
    if (how == Calls::one_at_a_time) works.back().wait_on_host();
  }
  works.back().wait();
  const double host = since();
  works.back().wait_on_host();
  const double ended = since();
  return {world.all_reduce(ended, {.op = ReduceOp::max}), world.all_reduce(host, {.op = ReduceOp::max})};
}

void measure(const Group& world, std::size_t bytes, double bandwidth, Calls how) {
  constexpr std::size_t kFewest = 5;
  std::size_t calls = std::clamp<std::size_t>((std::size_t{2} << 30) / bytes, kFewest, 100);
  std::vector<CommMemory> memory;
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < (how == Calls::in_flight ? calls : 1); ++i) {
    memory.push_back(world.allocate(bytes, kGpu));
    buffers.push_back({memory.back().data(), bytes / sizeof(float), DType::f32, kGpu});
  }
  (void)once(world, buffers, kFewest, how);                      // connecting, the first launch
  const double pace = once(world, buffers, kFewest, how).ended;  // the same number on all ranks
  calls = std::clamp(static_cast<std::size_t>(kRoundSeconds / pace), kFewest, calls);
  std::vector<double> ended;
  std::vector<double> host;
  for (int round = 0; round < kRounds + 1; ++round) {
    const Took took = once(world, buffers, calls, how);
    if (round == 0) continue;  // mapping
    ended.push_back(took.ended);
    host.push_back(took.host);
  }
  if (world.rank() != 0) return;
  const double floor = 2.0 * world.size() * static_cast<double>(bytes) / bandwidth;
  std::printf(
      "{\"bench\": \"all_reduce\", \"device\": \"cuda\", \"engine\": \"%s\", \"ranks\": %d, \"bytes\": %zu, "
      "\"calls\": \"%s\", \"seconds\": %.9f, \"host_seconds\": %.9f, \"floor_seconds\": %.9f, \"of_floor\": "
      "%.4f, \"copy_bytes_per_second\": %.4e}\n",
      world.engine(), world.size(), bytes, name_of(how), median(ended), median(host), floor,
      floor / median(ended), bandwidth);
  std::fflush(stdout);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) try {
  using namespace lockstep;
  std::string why;
  if (cuda::device_count(&why) == 0) {
    std::fprintf(stderr, "no GPU here: %s\n", why.c_str());
    return 1;
  }
  // NCCL refuses two ranks of one GPU and machine.
  ::setenv("NCCL_HOSTID", ("bench-" + std::to_string(Identity::from_environment().rank)).c_str(), 0);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  const Group world = init({.device = Device::Kind::cuda});
  double bandwidth = world.rank() == 0 ? copy_bandwidth() : 0;
  bandwidth = world.all_reduce(bandwidth);
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10) << 20);
  if (sizes.empty()) sizes = {std::size_t{25} << 20, std::size_t{256} << 20};
  for (const std::size_t bytes : sizes)
    for (const Calls how : {Calls::in_flight, Calls::in_a_row, Calls::one_at_a_time})
      measure(world, bytes, bandwidth, how);
  return 0;
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "%s error: %s\n", lockstep::to_string(error.kind()), error.what());
  return 1;
}
