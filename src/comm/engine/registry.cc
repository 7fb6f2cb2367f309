#include "comm/engine/registry.h"

#include <algorithm>
#include <list>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// In a function, so that it is there before the first static object that adds an engine; a list, so that what
// find_engine gave stays where it is.
std::list<EngineKind>& kinds() {
  static std::list<EngineKind> all;
  return all;
}

// Files add themselves in any order: `auto` must not depend on it.
std::size_t order_of(const EngineKind& kind) {
  const EngineProfile* const known = known_engine(kind.profile.name);
  return known == nullptr ? std::size(kKnownEngines) : static_cast<std::size_t>(known - kKnownEngines);
}

}  // namespace

bool add_engine(EngineKind kind) {
  const std::string name = kind.profile.name;
  if (name.empty() || name == "auto" || name.find('+') != std::string::npos)
    throw UsageError("an engine can't be called '" + name + "'; accepted: a word without '+', and not auto");
  if (find_engine(name) != nullptr) throw UsageError("there is an engine '" + name + "' already");
  const auto after = std::ranges::find_if(
      kinds(), [&](const EngineKind& other) { return order_of(other) > order_of(kind); });
  kinds().insert(after, std::move(kind));
  return true;
}

const EngineKind* find_engine(std::string_view name) {
  const auto found =
      std::ranges::find_if(kinds(), [&](const EngineKind& kind) { return name == kind.profile.name; });
  return found == kinds().end() ? nullptr : &*found;
}

std::vector<EngineProfile> engine_profiles() {
  std::vector<EngineProfile> profiles;
  for (const EngineKind& kind : kinds()) profiles.push_back(kind.profile);
  return profiles;
}

std::vector<EngineView> all_engines() {
  std::vector<EngineView> views;
  for (const EngineProfile& known : kKnownEngines)
    if (const EngineKind* const kind = find_engine(known.name))
      views.push_back({known, kind->can(), {}});
    else
      views.push_back(
          {known,
           {},
           std::string("install ") + known.package + " and configure with " + known.option + "=ON"});
  for (const EngineKind& kind : kinds())
    if (known_engine(kind.profile.name) == nullptr) views.push_back({kind.profile, kind.can(), {}});
  return views;
}

}  // namespace lockstep
