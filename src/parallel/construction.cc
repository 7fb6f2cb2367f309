#include "lockstep/parallel/construction.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/units.h"
#include "parallel/unit_parts.h"
#include "parallel/unit_points.h"

namespace lockstep {
namespace {

// Whole while this lives.
class WholeParts {
 public:
  explicit WholeParts(const std::vector<std::shared_ptr<UnitParts>>& parts) {
    for (const auto& each : parts)
      if (!each->whole()) brought_.push_back(each);
    for (const auto& each : brought_) each->bring();
  }
  void cut() const {
    for (const auto& each : brought_) each->cut();
  }

 private:
  std::vector<std::shared_ptr<UnitParts>> brought_;
};

}  // namespace

struct ShardedConstruction::Made {
  std::vector<std::shared_ptr<UnitParts>> parts;
};

ShardedConstruction*& ShardedConstruction::current() {
  thread_local ShardedConstruction* scope = nullptr;
  return scope;
}

ShardedConstruction::ShardedConstruction(Group group)
    : group_(std::move(group)), tally_(std::make_shared<PartsTally>()), made_(std::make_unique<Made>()) {
  if (current() != nullptr)
    throw UsageError("ShardedConstruction: another one of this thread is open; accepted: one at a time");
  current() = this;
}

ShardedConstruction::~ShardedConstruction() { current() = nullptr; }

std::size_t ShardedConstruction::peak_bytes() const { return tally_->peak; }

void ShardedConstruction::take(UnitPoint& point) {
  if (group_.size() == 1) return;
  const std::string name =
      "unit " + std::to_string(made_->parts.size()) + " (" + point.modules.front()->name() + ")";
  std::vector<torch::Tensor> own;
  for (const torch::nn::Module* const module : modules_of(point))
    for (const torch::Tensor& parameter : module->parameters(/*recurse=*/false)) {
      const auto same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
      if (!parameter.defined() || std::ranges::any_of(own, same)) continue;
      // That of a unit inside of this one, or tied.
      const auto known =
          std::ranges::find_if(made_->parts, [&](const auto& parts) { return parts->holds(parameter); });
      if (known != made_->parts.end()) {
        if (std::ranges::count(point.parts, *known) == 0) point.parts.push_back(*known);
      } else if (can_be_cut(parameter)) {
        if (!has_memory(parameter))
          throw UsageError("ShardedConstruction: a parameter of " + name +
                           " has no memory: another one cut it, or a strategy has it; accepted: one "
                           "ShardedConstruction around all units that share it");
        if (parameter.storage().use_count() > 1)
          throw UsageError("ShardedConstruction: a parameter of " + name +
                           " has its memory in common with another tensor, which would keep it; to tie "
                           "weights, register one tensor under both names");
        own.push_back(parameter);
      }
    }
  if (own.empty()) return;
  made_->parts.push_back(std::make_shared<UnitParts>(group_, name, own, tally_));
  point.parts.push_back(made_->parts.back());
}

void UnitPoint::made() {
  if (ShardedConstruction* const scope = ShardedConstruction::current()) scope->take(*this);
}

void initialise(const Unit& unit, const std::function<void()>& fn) {
  if (!unit.point()) return fn();
  const WholeParts whole(unit.point()->parts);
  fn();
  whole.cut();
}

void for_each_unit(torch::nn::Module& model, const std::function<void(torch::nn::Module&)>& fn) {
  for (const auto& point : units_in(model)) {
    if (point->parts.empty()) continue;
    const WholeParts whole(point->parts);
    for (const auto& module : point->modules) fn(*module);
    whole.cut();
  }
  fn(model);
}

bool has_memory(const torch::Tensor& parameter) {
  return parameter.numel() == 0 || parameter.storage().data() != nullptr;
}

}  // namespace lockstep
