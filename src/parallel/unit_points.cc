#include "parallel/unit_points.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/parallel/units.h"
#include "parallel/unit_parts.h"

namespace lockstep {
namespace {

// Units of this process. A module does not know that it is one, and a strategy is given modules.
class KnownUnits {
 public:
  void add(const std::shared_ptr<UnitPoint>& point) {
    const std::lock_guard lock(mutex_);
    std::erase_if(points_, [](const auto& known) { return known.expired(); });
    points_.push_back(point);
  }
  std::vector<std::shared_ptr<UnitPoint>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<UnitPoint>> list;
    for (const auto& known : points_)
      if (auto point = known.lock()) list.push_back(std::move(point));
    return list;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<UnitPoint>> points_;
};

// Never ended: units of a program's statics go late.
KnownUnits& known_units() {
  static auto& units = *new KnownUnits;
  return units;
}

void collect(const torch::nn::Module& module, std::vector<const torch::nn::Module*>& list) {
  list.push_back(&module);
  for (const auto& child : module.children()) collect(*child, list);
}

}  // namespace

void UnitPoint::refuse_parts() const {
  if (std::ranges::any_of(parts, [](const auto& part) { return !part->whole(); }))
    throw UsageError(
        "forward of a unit whose parameters are in parts since it was made (ShardedConstruction); accepted: "
        "behind the strategy that takes the model");
}

std::vector<const torch::nn::Module*> modules_in(const torch::nn::Module& module) {
  std::vector<const torch::nn::Module*> list;
  collect(module, list);
  return list;
}

std::vector<const torch::nn::Module*> modules_of(const UnitPoint& point) {
  std::vector<const torch::nn::Module*> list;
  for (const auto& module : point.modules) collect(*module, list);
  return list;
}

std::vector<std::shared_ptr<UnitPoint>> units_in(const torch::nn::Module& module) {
  const auto list = modules_in(module);
  const std::unordered_set<const torch::nn::Module*> inside(list.begin(), list.end());
  std::vector<std::shared_ptr<UnitPoint>> found;
  for (auto& point : known_units().all())
    if (std::ranges::all_of(point->modules, [&](const auto& m) { return inside.contains(m.get()); }))
      found.push_back(std::move(point));
  return found;
}

Unit::Unit(std::vector<std::shared_ptr<torch::nn::Module>> modules)
    : point_(std::make_shared<UnitPoint>(UnitPoint{.modules = std::move(modules)})) {
  if (point_->modules.empty() || std::ranges::count(point_->modules, nullptr) > 0)
    throw UsageError("a unit of no module; accepted: modules that are registered, by shared_ptr");
  point_->made();
  known_units().add(point_);
}

void recompute(const Unit& unit, bool on) {
  if (!unit.point())
    throw UsageError("recompute: a unit of no module; accepted: one of shard(), or Unit{{…}}");
  unit.point()->recompute = on;
}

int recompute_units(const torch::nn::Module& module, bool on) {
  const auto points = units_in(module);
  const auto within = [](const UnitPoint& inner, const UnitPoint& outer) {
    const auto list = modules_of(outer);
    return &inner != &outer && list.size() > modules_of(inner).size() &&
           std::ranges::all_of(inner.modules,
                               [&](const auto& m) { return std::ranges::count(list, m.get()) > 0; });
  };
  int count = 0;
  for (const auto& point : points) {
    if (std::ranges::any_of(points, [&](const auto& other) { return within(*point, *other); })) continue;
    point->recompute = on;
    ++count;
  }
  return count;
}

namespace detail {

UnitPass::UnitPass(const std::shared_ptr<UnitPoint>& point) : point_(point) {
  point_->refuse_parts();
  if (const auto keeper = point_->keeper.lock()) use_ = keeper->begin_forward(point_->number);
}

UnitPass::~UnitPass() {
  if (!use_) return;
  try {
    if (const auto keeper = point_->keeper.lock()) keeper->end_forward(use_, {});
  } catch (...) {  // NOLINT(bugprone-empty-catch): the forward's own exception is under way
  }
}

void UnitPass::gave(const Tensors& outputs) {
  if (!use_) return;
  const auto use = std::move(use_);
  use_ = nullptr;
  if (const auto keeper = point_->keeper.lock()) keeper->end_forward(use, outputs);
}

bool recomputes(const UnitPoint& point) { return point.recompute && torch::GradMode::is_enabled(); }
bool gathered(const UnitPoint& point) { return !point.keeper.expired(); }

}  // namespace detail
}  // namespace lockstep
