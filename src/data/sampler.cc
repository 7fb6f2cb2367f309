#include "lockstep/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {

const char* to_string(LastStep last_step) {
  switch (last_step) {
    case LastStep::short_: return "short";
    case LastStep::drop: return "drop";
    case LastStep::wrap: return "wrap";
  }
  return "?";
}

LastStep parse_last_step(const std::string& name) {
  for (const LastStep one : {LastStep::short_, LastStep::drop, LastStep::wrap})
    if (name == to_string(one)) return one;
  throw UsageError("last step '" + name + "' is not understood; accepted: short, drop, wrap");
}

// Fisher and Yates' shuffle, our own: std::shuffle's order differs between standard libraries.
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle) {
  constexpr std::uint64_t kStream = 0x6f'72'64'65'72;  // "order": apart from every other use of the seed
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  RandomStream random(mix_bits(seed ^ kStream), static_cast<std::uint64_t>(epoch), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

Sampler::Sampler(std::int64_t size, SamplerOptions options) : size_(size), options_(options) {
  if (size < 1) throw UsageError("sampler: " + std::to_string(size) + " examples; accepted: 1 or more");
  if (options.lanes < 1)
    throw UsageError("lanes = " + std::to_string(options.lanes) + "; accepted: 1 or more");
  if (options.lane_batch < 1)
    throw UsageError("lane_batch = " + std::to_string(options.lane_batch) + "; accepted: 1 or more");
  const std::int64_t full = size / step_batch();
  const std::int64_t rest = size % step_batch();
  const bool joins = options.last_step == LastStep::short_ && rest == 1 && full > 0 && options.lane_batch > 1;
  const bool drops = options.last_step == LastStep::drop;
  steps_ = full + (rest > 0 && !joins && !drops ? 1 : 0);
  if (steps_ == 0)
    throw UsageError("sampler: " + std::to_string(size) + " examples are less than one step of " +
                     std::to_string(options.lanes) + " lanes × " + std::to_string(options.lane_batch) +
                     ", and the last step is drop; accepted: " + std::to_string(step_batch()) +
                     " examples or more, or a last step of short or wrap");
}

std::vector<std::int64_t> Sampler::lane_sizes(std::int64_t step_of_epoch) const {
  if (step_of_epoch < 0 || step_of_epoch >= steps_)
    throw UsageError("step " + std::to_string(step_of_epoch) + " of an epoch of " + std::to_string(steps_) +
                     "; accepted: 0 to " + std::to_string(steps_ - 1));
  const auto lanes = static_cast<std::size_t>(options_.lanes);
  std::vector<std::int64_t> sizes(lanes, options_.lane_batch);
  if (step_of_epoch < steps_ - 1 || options_.last_step != LastStep::short_) return sizes;

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
  if (epoch != epoch_) {
    epoch_ = -1;
    order_ = epoch_order(size_, options_.seed, epoch, options_.shuffle);
    epoch_ = epoch;
  }
  const std::int64_t first =
      std::accumulate(sizes.begin(), sizes.begin() + lane, step_of_epoch * step_batch());
  std::vector<std::int64_t> examples;
  for (std::int64_t i = first; i < first + sizes[static_cast<std::size_t>(lane)]; ++i)
    examples.push_back(order_[static_cast<std::size_t>(i % size_)]);  // beyond the end only with wrap
  return examples;
}

}  // namespace lockstep
