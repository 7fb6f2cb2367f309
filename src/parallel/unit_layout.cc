#include "parallel/unit_layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace lockstep {
namespace {

constexpr int kNoUnit = -1;

std::unordered_map<const torch::nn::Module*, std::string> names_below(const torch::nn::Module& module) {
  std::unordered_map<const torch::nn::Module*, std::string> names;
  for (const auto& entry : module.named_modules(std::string(), /*include_self=*/false))
    names.emplace(entry.value().get(), entry.key());
  return names;
}

}  // namespace

UnitLayout lay_out_units(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters) {
  UnitLayout layout;
  const auto all = units_in(module);
  // Modules that units were made of, with all that lies in each, and the units.
  struct Root {
    std::set<const torch::nn::Module*> inside;
    std::set<int> units;
  };
  std::unordered_map<const torch::nn::Module*, Root> roots;
  for (std::size_t u = 0; u < all.size(); ++u)
    for (const auto& made_of : all[u]->modules) {
      Root& root = roots[made_of.get()];
      root.units.insert(static_cast<int>(u));
      if (!root.inside.empty()) continue;
      const auto modules = modules_in(*made_of);
      root.inside.insert(modules.begin(), modules.end());
    }
  std::unordered_map<const void*, std::set<int>> users;  // of each parameter
  const auto look_at = [&](const torch::nn::Module& user) {
    std::vector<const torch::nn::Module*> around;
    for (const auto& [made_of, root] : roots)
      if (root.inside.contains(&user)) around.push_back(made_of);
    std::set<int> innermost;  // of units: two that were made of the same module are both
    for (const torch::nn::Module* const made_of : around) {
      const Root& root = roots.at(made_of);
      if (std::ranges::none_of(
              around, [&](const auto* other) { return other != made_of && root.inside.contains(other); }))
        innermost.insert(root.units.begin(), root.units.end());
    }
    if (innermost.empty()) innermost.insert(kNoUnit);
    for (const torch::Tensor& parameter : user.parameters(/*recurse=*/false))
      if (parameter.defined())
        users[parameter.unsafeGetTensorImpl()].insert(innermost.begin(), innermost.end());
  };
  look_at(module);
  for (const auto& entry : module.named_modules(std::string(), /*include_self=*/false))
    look_at(*entry.value());

  std::map<int, int> numbers;  // of the units that have parameters
  std::map<std::set<int>, int> kinds;
  layout.units_of_kind.emplace_back();
  const auto names = names_below(module);
  for (const NamedTensor& parameter : parameters) {
    const std::set<int>& units = users[parameter.tensor.unsafeGetTensorImpl()];
    if (units.contains(kNoUnit)) {
      layout.kinds.push_back(0);
      continue;
    }
    const auto [kind, is_new] = kinds.emplace(units, static_cast<int>(layout.units_of_kind.size()));
    layout.kinds.push_back(kind->second);
    if (!is_new) continue;
    std::vector<int>& list = layout.units_of_kind.emplace_back();
    for (const int u : units) {
      const auto [number, first] = numbers.emplace(u, static_cast<int>(layout.points.size()));
      list.push_back(number->second);
      if (!first) continue;
      const auto& point = all[static_cast<std::size_t>(u)];
      layout.points.push_back(point);
      const auto named = names.find(point->modules.front().get());
      layout.names.push_back(named != names.end() ? named->second : "the model");
    }
  }
  return layout;
}

}  // namespace lockstep
