// Where parameters in shards lie: one copy for the workers of a machine, or parts that are gathered in units.
#pragma once

#include <memory>

#include "lockstep/parallel/sharded.h"

namespace lockstep {

class OneCopy;
class ParameterUnits;

// At most one of them; none: every worker has all parameters.
struct ShardHome {
  std::unique_ptr<OneCopy> copy;
  std::shared_ptr<ParameterUnits> units;
};

// Throws UsageError that names the strategy, which keeps parameters whole: where options of shards are given.
// `in_sets`: `shard_workers` is one of them.
void refuse_options_of_shards(const std::string& strategy, const StrategyOptions& options, bool in_sets);

// `device`: where the parameters are. Throws UsageError where what is asked for can't be. Collective.
ShardHome choose_home(const Group& group, ShardStage stage, const StrategyOptions& options, Device device);

}  // namespace lockstep
