#include "parallel/shard_home.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/device.h"
#include "parallel/one_copy.h"
#include "parallel/parameter_units.h"

namespace lockstep {
namespace {

std::size_t budget_bytes(double mb) {
  if (!(mb >= 0) || mb > 1e9)
    throw UsageError("gathered_mb = " + std::to_string(mb) + "; accepted: 0 (two units) or more");
  return static_cast<std::size_t>(std::ceil(mb * (1 << 20)));
}

// Workers of a node; they have to stand in a row, and be as many on every node.
int workers_of_a_node(const Group& group) {
  const std::vector<int>& nodes = group.nodes();
  const auto workers = static_cast<std::size_t>(std::ranges::count(nodes, nodes[0]));
  for (std::size_t r = 0; r < nodes.size(); ++r)
    if (nodes[r] != nodes[r / workers * workers] ||
        static_cast<std::size_t>(std::ranges::count(nodes, nodes[r])) != workers)
      throw UsageError(
          "hybrid-shard: nodes have different numbers of workers, or their ranks are not in a row; accepted: "
          "as many on every node, or shard_workers");
  return static_cast<int>(workers);
}

int sharers_of(const Group& group, const StrategyOptions& options) {
  const int shard_workers = options.shard_workers;
  if (shard_workers == 0) return options.shard_inside_nodes ? workers_of_a_node(group) : group.size();
  if (shard_workers < 0 || group.size() % shard_workers != 0)
    throw UsageError("shard_workers = " + std::to_string(shard_workers) + " of " +
                     std::to_string(group.size()) + " workers; accepted: 0 (all), or what divides them");
  return shard_workers;
}

// Who has parts on disk makes room for them with the others, who would wait for it elsewhere.
void check_on_all(const Group& group, const Offload& offload) {
  const std::vector<std::int64_t> all = group.all_gather(std::int64_t{offload ? 1 : 0});
  const auto with = std::ranges::find(all, 1), without = std::ranges::find(all, 0);
  if (with != all.end() && without != all.end())
    throw UsageError("Sharded: " + group.named(static_cast<int>(with - all.begin())) +
                     " has `offload_params`, and not " +
                     group.named(static_cast<int>(without - all.begin())) + "; accepted: on all, or none");
}

}  // namespace

void refuse_options_of_shards(const std::string& strategy, const StrategyOptions& options, bool in_sets) {
  if (in_sets || options.parameters != ParameterAccess::chosen || options.gathered_mb != 0 ||
      options.offload_params)
    throw UsageError(
        strategy +
        ": options `parameters`, `gathered_mb`, `shard_workers` and `offload_params` are of parameters "
        "in shards; accepted: without them, or Sharded with the stage `parameters` (zero3)");
}

ShardHome choose_home(const Group& group, ShardStage stage, const StrategyOptions& options, Device device) {
  const int sharers = sharers_of(group, options);
  const std::size_t budget = budget_bytes(options.gathered_mb);
  if (stage != ShardStage::parameters) {
    refuse_options_of_shards("Sharded", options, sharers != group.size());
    return {};
  }
  check_on_all(group, options.offload_params);
  const bool on_host = device.kind == Device::Kind::cpu;
  if (options.offload_params && !on_host)
    throw UsageError(
        "Sharded: `offload_params` is of parameters in the processor's memory, and they are on " +
        to_string(device) + "; accepted: without it, or on cpu");
  if (options.parameters == ParameterAccess::mapped) {
    if (sharers != group.size() || budget != 0 || options.offload_params)
      throw UsageError(
          "Sharded: `gathered_mb`, `shard_workers` and `offload_params` are of parameters that are gathered, "
          "and `parameters` says mapped; accepted: without them");
    return {.copy = OneCopy::make(group, device), .units = nullptr};
  }
  // Who says how much may be gathered, or among how many, wants it gathered. One copy a machine is in shards
  // inside of nodes already.
  if (options.parameters == ParameterAccess::chosen && options.shard_workers == 0 && budget == 0 &&
      !options.offload_params) {
    if (!on_host && group.size() == 1) return {};  // it has them all, where they are
    if (auto copy = OneCopy::where_possible(group, device))
      return {.copy = std::move(copy), .units = nullptr};
  }
  return {.copy = nullptr,
          .units = std::make_shared<ParameterUnits>(group, sharers, budget, device, options.offload_params)};
}

}  // namespace lockstep
