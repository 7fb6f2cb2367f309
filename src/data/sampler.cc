#include "lockstep/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {

Sampler::Sampler(std::int64_t size, SamplerOptions options) : size_(size), options_(options) {
  if (size < 1) throw UsageError("sampler: " + std::to_string(size) + " examples; accepted: 1 or more");
  if (options.lanes < 1)
    throw UsageError("lanes = " + std::to_string(options.lanes) + "; accepted: 1 or more");
  if (options.lane_batch < 1)
    throw UsageError("lane_batch = " + std::to_string(options.lane_batch) + "; accepted: 1 or more");
  const std::int64_t full = size / step_batch();
  const std::int64_t rest = size % step_batch();
  const bool joins = rest == 1 && full > 0 && options.lane_batch > 1;
  steps_ = full + (rest > 0 && !joins ? 1 : 0);
}

std::vector<std::int64_t> Sampler::lane_sizes(std::int64_t step_of_epoch) const {
  if (step_of_epoch < 0 || step_of_epoch >= steps_)
    throw UsageError("step " + std::to_string(step_of_epoch) + " of an epoch of " + std::to_string(steps_) +
                     "; accepted: 0 to " + std::to_string(steps_ - 1));
  const auto lanes = static_cast<std::size_t>(options_.lanes);
  std::vector<std::int64_t> sizes(lanes, options_.lane_batch);
  if (step_of_epoch < steps_ - 1) return sizes;

  const std::int64_t left = size_ - step_of_epoch * step_batch();
  if (left >= step_batch()) {
    sizes[0] += left - step_batch();  // 0, or the single one that joins
    return sizes;
  }
  const std::int64_t least = std::min(2, options_.lane_batch);
  const std::int64_t used = std::clamp<std::int64_t>(left / least, 1, options_.lanes);
  for (std::int64_t l = 0; l < options_.lanes; ++l)
    sizes[static_cast<std::size_t>(l)] = l < used ? left / used + (l < left % used ? 1 : 0) : 0;
  return sizes;
}

std::vector<std::int64_t> Sampler::lane(std::int64_t epoch, std::int64_t step_of_epoch, int lane) const {
  const auto sizes = lane_sizes(step_of_epoch);
  if (lane < 0 || lane >= options_.lanes)
    throw UsageError("lane " + std::to_string(lane) + "; accepted: 0 to " +
                     std::to_string(options_.lanes - 1));
  if (epoch < 0) throw UsageError("epoch " + std::to_string(epoch) + "; accepted: 0 or more");
  if (epoch != epoch_) make_order(epoch);
  const std::int64_t first =
      std::accumulate(sizes.begin(), sizes.begin() + lane, step_of_epoch * step_batch());
  const auto begin = order_.begin() + first;
  return {begin, begin + sizes[static_cast<std::size_t>(lane)]};
}

// Fisher and Yates' shuffle, our own: std::shuffle's order differs between standard libraries.
void Sampler::make_order(std::int64_t epoch) const {
  constexpr std::uint64_t kStream = 0x6f'72'64'65'72;  // "order": apart from every other use of the seed
  epoch_ = -1;
  order_.resize(static_cast<std::size_t>(size_));
  std::iota(order_.begin(), order_.end(), 0);
  if (options_.shuffle) {
    RandomStream random(mix_bits(options_.seed ^ kStream), static_cast<std::uint64_t>(epoch), 0);
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
  epoch_ = epoch;
}

}  // namespace lockstep
