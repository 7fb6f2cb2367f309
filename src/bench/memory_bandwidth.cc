#include "bench/memory_bandwidth.h"

#include <algorithm>

#include "comm/engine/vendor.h"
#include "comm/kernel/reduce.h"
#include "lockstep/base/clock.h"

namespace lockstep {
double memory_bandwidth(const Group& world, std::uint64_t bytes_per_worker) {
  constexpr int kPasses = 7;
  constexpr std::int64_t kShortestNs = 200'000;  // a pass lasts at least so long, to be timed well
  const std::size_t count = std::max<std::size_t>(16, bytes_per_worker / sizeof(float));
  const CommMemory memory = private_memory(count * sizeof(float));
  auto* data = memory.as<float>();
  const auto pass = [&](std::int64_t repeats) {
    world.barrier();
    const std::int64_t begin = now_ns();
    // max(x, x): reads and writes every line and leaves the values alone.
    for (std::int64_t i = 0; i < repeats; ++i)
      kernel::combine(data, data, data, count, {.dtype = DType::f32, .op = ReduceOp::max});
    return world.all_reduce(now_ns() - begin, {.op = ReduceOp::max});
  };
  pass(1);
  const std::int64_t repeats = 1 + kShortestNs / std::max<std::int64_t>(1, pass(1));
  std::int64_t best = pass(repeats);
  for (int i = 1; i < kPasses; ++i) best = std::min(best, pass(repeats));
  const double moved = 2.0 * static_cast<double>(count * sizeof(float)) * static_cast<double>(repeats);
  return moved * world.size() / (static_cast<double>(best) * 1e-9);
}

}  // namespace lockstep
