#include "train/footprint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "lockstep/comm/lanes.h"
#include "lockstep/parallel/strategies.h"
#include "train/memory_use.h"
#include "train/precision.h"

namespace lockstep {
namespace {

// What the optimizer keeps of a parameter beside its master.
int state_kinds(const TrainerOptions& o) {
  if (!o.optimizer.ends_with("sgd") && o.optimizer != "lars") return 2;
  return o.momentum == 0 ? 0 : 1;
}

}  // namespace

StateBytes predict_state_bytes(const TrainerOptions& o, const Strategy& strategy) {
  StateBytes bytes;
  for (const torch::Tensor& p : strategy.module().parameters())
    bytes.parameters += static_cast<double>(p.numel()) * static_cast<double>(p.element_size());
  const Group& group = strategy.group();
  const int lanes = lanes_of(group.rank(), group.size(), o.lanes).count;
  // grad/gradient_store.h: one for every digit of the number of pairs
  const double sets = std::bit_width((static_cast<unsigned>(std::max(1, lanes)) + 1) / 2);
  const double shards = leaves_of(o.strategy) == Exchange::Leaves::own_part ? group.size() : 1;
  for (const NamedTensor& p : strategy.parameters()) {
    const auto count = static_cast<double>(p.tensor.numel());
    const auto size = static_cast<double>(p.tensor.element_size());
    const int kinds = state_kinds(o);
    const bool widened = o.parallel.reduce_precision == ReducePrecision::f32;
    bytes.gradients += sets * count * (widened ? std::max(size, 4.0) : size);
    bytes.optimizer += count * (size == 2 && keeps_masters(o) ? 4 * (1 + kinds) : size * kinds) / shards;
  }
  return bytes;
}

nlohmann::ordered_json memory_figures(const TrainerOptions& options, const Strategy& strategy,
                                      const TrainOptimizer& optimizer, std::int64_t resident_before) {
  std::int64_t count = 0;
  for (const torch::Tensor& p : strategy.module().parameters()) count += p.numel();
  const auto parameters = static_cast<std::int64_t>(strategy.parameter_bytes());
  const auto kept = static_cast<std::int64_t>(optimizer.state_bytes());
  const auto buckets = static_cast<std::int64_t>(strategy.gradient_bytes());
  const std::int64_t own = parameters + buckets + kept;
  const double predicted = predict_state_bytes(options, strategy).total();
  const Group& world = strategy.group();
  return {{"peak_rss_bytes", world.all_gather(memory_bytes("VmHWM"))},
          {"state_bytes", world.all_gather(own)},
          {"predicted_state_bytes", std::llround(predicted)},
          {"state_bytes_a_parameter", static_cast<double>(own) / static_cast<double>(count)},
          {"predicted_state_bytes_a_parameter", predicted / static_cast<double>(count)},
          {"memory",
           {{"parameter_bytes", parameters},
            {"gradient_bytes", buckets},
            {"optimizer_bytes", kept},
            {"predicted_bytes", own},
            {"measured_bytes", memory_bytes("VmRSS") - resident_before}}}};
}

nlohmann::ordered_json wire_bytes_a_step(const Group& world, std::uint64_t sent_here, std::int64_t steps) {
  const double sent = world.all_reduce(static_cast<double>(sent_here), {.purpose = "how much was sent"});
  const std::string engine = world.engine();
  if (steps == 0 || engine.find("mpi") != std::string::npos || engine.find("gloo") != std::string::npos)
    return {};
  return std::llround(sent);
}

}  // namespace lockstep
