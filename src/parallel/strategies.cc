#include "lockstep/parallel/strategies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/strategy_names.h"
#include "lockstep/parallel/zero1.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw UsageError(fmt::format("strategy '{}'; accepted: {}", name, fmt::join(kStrategyNames, ", ")));
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const std::string& name, const ModuleRef& module, Group group,
                                        const StrategyOptions& options) {
  if (name == "ddp") return std::make_unique<DataParallel>(module, std::move(group), options);
  if (name == "zero1") return std::make_unique<Zero1>(module, std::move(group), options);
  refuse(name);
}

Exchange::Leaves leaves_of(const std::string& strategy) {
  if (strategy == "ddp") return Exchange::Leaves::everything;
  if (strategy == "zero1") return Exchange::Leaves::own_part;
  refuse(strategy);
}

}  // namespace lockstep
