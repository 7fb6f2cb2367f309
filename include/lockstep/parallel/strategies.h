// Strategies by name: for programs that let their users choose.
//
//   auto strategy = lockstep::make_strategy("ddp", model, world);
//
// | name | is | every worker holds |
// |---|---|---|
// | ddp | DataParallel | parameters, gradients and the optimizer's state |
// | zero1 | Sharded, `optimizer` | parameters, gradients and its share of the optimizer's state |
// | zero2 | Sharded, `gradients` | parameters and its share of the rest |
// | zero3 | Sharded, `parameters` | its share: of the parameters one copy a machine, or gathered (units.h) |
// | hybrid-shard | likewise, `shard_inside_nodes` | its share: of the parameters by the workers of its node |
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/module_ref.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep {

// Collective. Throws UsageError that lists the names.
std::unique_ptr<Strategy> make_strategy(const std::string& name, const ModuleRef& module, Group group,
                                        const StrategyOptions& options = {});

// What the strategy's own exchange leaves every worker of the gradients. Throws likewise.
Exchange::Leaves leaves_of(const std::string& strategy);

}  // namespace lockstep
