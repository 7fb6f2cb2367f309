#include "lockstep/parallel/strategies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/sharded.h"
#include "lockstep/parallel/strategy_names.h"

namespace lockstep {
namespace {

constexpr const char* kHybrid = "hybrid-shard";

[[noreturn]] void refuse(const std::string& name) {
  throw UsageError(fmt::format("strategy '{}'; accepted: {}", name, fmt::join(kStrategyNames, ", ")));
}

std::optional<ShardStage> shard_stage(const std::string& name) {
  if (name == "zero1") return ShardStage::optimizer;
  if (name == "zero2") return ShardStage::gradients;
  if (name == "zero3" || name == kHybrid) return ShardStage::parameters;
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const std::string& name, const ModuleRef& module, Group group,
                                        const StrategyOptions& options) {
  if (name == "ddp") return std::make_unique<DataParallel>(module, std::move(group), options);
  StrategyOptions sharded = options;
  if (name == kHybrid) sharded.shard_inside_nodes = true;
  if (const auto stage = shard_stage(name))
    return std::make_unique<Sharded>(module, std::move(group), *stage, sharded);
  refuse(name);
}

Exchange::Leaves leaves_of(const std::string& strategy) {
  if (strategy == "ddp") return Exchange::Leaves::everything;
  if (shard_stage(strategy)) return Exchange::Leaves::own_part;
  refuse(strategy);
}

}  // namespace lockstep
