#include "train/footprint.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "grad/bucket_size.h"
#include "grad/bucket_slots.h"
#include "lockstep/comm/lanes.h"
#include "train/gpu_memory.h"
#include "train/memory_use.h"
#include "train/model_size.h"
#include "train/precision.h"

namespace lockstep {

// What a plan takes for granted.
static_assert(kBucketBytes == kLargestBucketMb * 0x1p20);
static_assert(kPagesInMemory == static_cast<int>(kStagedPages));
static_assert(kBucketsInFlight == BucketSlots::kUnderWay + 1);

StateBytes predict_state_bytes(const TrainerOptions& o, const Strategy& strategy) {
  const Group& group = strategy.group();
  const std::vector<int>& nodes = group.nodes();
  const auto machine_workers =
      static_cast<int>(std::ranges::count(nodes, nodes[static_cast<std::size_t>(group.rank())]));
  const bool widened = o.parallel.reduce_precision == ReducePrecision::f32;
  const bool in_nodes = o.strategy == "hybrid-shard" || o.parallel.shard_inside_nodes;
  return state_bytes(model_size(strategy.module()),
                     {.stage = stage_of(o.strategy),
                      .workers = group.size(),
                      .machine_workers = machine_workers,
                      .sharers = o.parallel.shard_workers != 0 ? o.parallel.shard_workers
                                 : in_nodes                    ? machine_workers
                                                               : group.size(),
                      .lanes = lanes_of(group.rank(), group.size(), o.lanes).count,
                      .moments = moments_of(o.optimizer, o.momentum),
                      .master_bytes = keeps_masters(o) ? 4 : 0,
                      .least_gradient_bytes = widened ? 4 : 0,
                      .bucket_bytes = strategy.bucket_cap_mb() * 0x1p20,
                      .staging_bytes = o.offload ? static_cast<double>(o.offload.staging_bytes) : 0,
                      .params_on_disk = static_cast<bool>(o.parallel.offload_params),
                      .gathers = strategy.gathers(),
                      .on_gpus = o.device != "cpu",
                      .one_copy = !strategy.gathers()});
}

namespace {

// Of a GPU all that is there between steps: the state, and what a program keeps beside it.
std::int64_t measured_bytes(const Strategy& strategy, std::int64_t resident_before) {
  for (const torch::Tensor& parameter : strategy.module().parameters())
    if (parameter.is_cuda()) {
      const GpuMemory there = gpu_memory(parameter.device().index());
      return there.now_bytes + there.comm_bytes;
    }
  return memory_bytes("VmRSS") - resident_before;
}

}  // namespace

nlohmann::ordered_json memory_figures(const TrainerOptions& options, const Strategy& strategy,
                                      const TrainOptimizer& optimizer, std::int64_t resident_before) {
  const ModelSize model = model_size(strategy.module());
  const auto parameters = static_cast<std::int64_t>(strategy.parameter_bytes());
  const auto kept = static_cast<std::int64_t>(optimizer.state_bytes());
  const auto buckets = static_cast<std::int64_t>(strategy.gradient_bytes());
  const std::int64_t own = parameters + buckets + kept + static_cast<std::int64_t>(strategy.gathered_bytes());
  const double predicted = predict_state_bytes(options, strategy).total();
  const Group& world = strategy.group();
  return {{"peak_rss_bytes", world.all_gather(memory_bytes("VmHWM"))},
          {"state_bytes", world.all_gather(own)},
          {"predicted_state_bytes", std::llround(predicted)},
          {"state_bytes_a_parameter", static_cast<double>(own) / model.count()},
          {"predicted_state_bytes_a_parameter", predicted / model.count()},
          {"memory",
           {{"parameter_bytes", parameters},
            {"gradient_bytes", buckets},
            {"optimizer_bytes", kept},
            {"gathered_bytes", static_cast<std::int64_t>(strategy.gathered_bytes())},
            {"accounted_bytes", own},
            {"predicted_bytes", std::llround(predicted)},
            {"measured_bytes", measured_bytes(strategy, resident_before)}}}};
}

nlohmann::ordered_json wire_bytes_a_step(const Group& world, std::optional<std::uint64_t> sent_here) {
  const double sent =
      world.all_reduce(static_cast<double>(sent_here.value_or(0)), {.purpose = "how much was sent"});
  const std::string engine = world.engine();
  if (!sent_here || engine.find("mpi") != std::string::npos || engine.find("gloo") != std::string::npos)
    return {};
  return std::llround(sent);
}

}  // namespace lockstep
