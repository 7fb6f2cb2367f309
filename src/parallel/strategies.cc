#include "lockstep/parallel/strategies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategy_names.h"

namespace lockstep {

std::unique_ptr<Strategy> make_strategy(const std::string& name, const ModuleRef& module, Group group,
                                        StrategyOptions options) {
  if (name == "ddp") return std::make_unique<DataParallel>(module, std::move(group), std::move(options));
  throw UsageError(fmt::format("strategy '{}'; accepted: {}", name, fmt::join(kStrategyNames, ", ")));
}

}  // namespace lockstep
