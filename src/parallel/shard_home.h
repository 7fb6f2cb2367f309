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

// `device`: where the parameters are. Throws UsageError where what is asked for can't be. Collective.
ShardHome choose_home(const Group& group, ShardStage stage, const StrategyOptions& options, Device device);

}  // namespace lockstep
