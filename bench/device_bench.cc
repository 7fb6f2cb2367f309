// all_reduce of f32 on GPUs, over the engine that LOCKSTEP_ENGINE names, beside the floor: the bytes that
// must move over the bandwidth that a copy on the card has. One line of JSON a size, from rank 0.
//
//   for e in ipc nccl; do LOCKSTEP_ENGINE=$e lockstep run -n 4 -- device_bench [MiB …]; done
//
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

void measure(const Group& world, std::size_t bytes, double bandwidth) {
  const CommMemory memory = world.allocate(bytes, kGpu);
  const Buffer x{memory.data(), bytes / sizeof(float), DType::f32, kGpu};
  const int calls = static_cast<int>(std::clamp<std::size_t>((std::size_t{2} << 30) / bytes, 5, 100));
  std::vector<double> seconds;
  std::vector<double> on_device;
  for (int round = 0; round < kRounds + 1; ++round) {
    sync();
    world.barrier();
    const std::int64_t begin = now_ns();
    std::vector<Work> works;
    for (int i = 0; i < calls; ++i) works.push_back(world.all_reduce_async(x, {.op = ReduceOp::avg}));
    works.back().wait_on_host();
    const double own = static_cast<double>(now_ns() - begin) * 1e-9 / calls;
    const double slowest = world.all_reduce(own, {.op = ReduceOp::max});
    const WorkTiming timing = works.back().timing();
    if (round == 0) continue;  // connecting, mapping, the first launch
    seconds.push_back(slowest);
    on_device.push_back(static_cast<double>(timing.end_ns - timing.running_ns) * 1e-9);
  }
  if (world.rank() != 0) return;
  const double floor = 2.0 * world.size() * static_cast<double>(bytes) / bandwidth;
  std::printf(
      "{\"bench\": \"all_reduce\", \"device\": \"cuda\", \"engine\": \"%s\", \"ranks\": %d, \"bytes\": %zu, "
      "\"seconds\": %.9f, \"last_on_device_seconds\": %.9f, \"floor_seconds\": %.9f, \"of_floor\": %.4f, "
      "\"copy_bytes_per_second\": %.4e}\n",
      world.engine(), world.size(), bytes, median(seconds), median(on_device), floor, floor / median(seconds),
      bandwidth);
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
  for (const std::size_t bytes : sizes) measure(world, bytes, bandwidth);
  return 0;
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "%s error: %s\n", lockstep::to_string(error.kind()), error.what());
  return 1;
}
