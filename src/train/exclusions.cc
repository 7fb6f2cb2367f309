#include "train/exclusions.h"

#include <fmt/format.h>

#include <string_view>

#include "base/split.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Whether `name` is `pattern`, in which * stands for any text.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (std::size_t at = star; at <= name.size(); ++at)
    if (matches(pattern.substr(star + 1), name.substr(at))) return true;
  return false;
}

}  // namespace

std::set<std::string> excluded(const TrainerOptions& o, const std::vector<NamedTensor>& parameters) {
  const bool layerwise = o.optimizer == "lars" || o.optimizer == "lamb";
  const std::string list = !o.exclude.empty() ? o.exclude : layerwise ? "1-d" : "none";
  std::set<std::string> names;
  if (list == "none") return names;
  for (const std::string& pattern : split_at_commas(list)) {
    std::size_t matched = 0;
    for (const NamedTensor& parameter : parameters)
      if (pattern == "1-d" ? parameter.tensor.dim() < 2 : matches(pattern, parameter.name)) {
        names.insert(parameter.name);
        ++matched;
      }
    if (matched > 0 || pattern == "1-d") continue;
    throw UsageError(fmt::format(
        "--exclude '{}' matches no parameter; accepted: 1-d, none, or names such as {}, with * for any text",
        pattern, parameters.empty() ? "fc.weight" : parameters.front().name));
  }
  return names;
}

}  // namespace lockstep
