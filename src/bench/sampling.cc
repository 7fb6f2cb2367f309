#include "bench/sampling.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

constexpr int kRounds = 10;

std::int64_t sample(const Group& world, const Contender& c) {
  if (c.prepare) c.prepare();
  world.barrier();
  const std::int64_t begin = now_ns();
  c.call();
  return now_ns() - begin;
}

// Warms up, and says how many samples to take: the same number on every rank.
int warm_up(const Group& world, const Contender& c, const SamplingOptions& options) {
  for (int i = 0; i < options.warmup; ++i) {
    world.barrier();
    c.call();
  }
  if (options.iterations != 0) return options.iterations;
  constexpr int kTries = 3;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < kTries; ++i) sample(world, c);
  const std::int64_t each = world.all_reduce((now_ns() - begin) / kTries, {.op = ReduceOp::max});
  const double seconds = std::max(1e-7, static_cast<double>(each) * 1e-9);
  const double fewest = std::clamp(10 * options.min_time_s / seconds, 10.0, std::max(10.0, options.fewest));
  return static_cast<int>(std::clamp(std::ceil(options.min_time_s / seconds), fewest, 20000.0));
}

}  // namespace

void sample_interleaved(const Group& world, std::vector<Contender>& contenders,
                        const SamplingOptions& options) {
  std::vector<int> samples;
  for (const Contender& c : contenders) samples.push_back(warm_up(world, c, options));
  std::vector<std::vector<std::int64_t>> ns(contenders.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t k = 0; k < contenders.size(); ++k) {
      const std::size_t i = (k + static_cast<std::size_t>(round)) % contenders.size();
      // The samples up to this round's end, so that the rounds add up to exactly that many.
      const auto target = static_cast<std::size_t>(std::int64_t{samples[i]} * (round + 1) / kRounds);
      if (ns[i].size() >= target) continue;
      world.barrier();
      contenders[i].call();
      while (ns[i].size() < target) ns[i].push_back(sample(world, contenders[i]));
    }
  }
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    world.all_reduce(buffer(ns[i]), {.op = ReduceOp::max});
    contenders[i].us.clear();
    for (std::int64_t t : ns[i]) contenders[i].us.push_back(static_cast<double>(t) * 1e-3);
    std::ranges::sort(contenders[i].us);
  }
}

}  // namespace lockstep
