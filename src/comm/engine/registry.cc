#include "comm/engine/registry.h"

#include <algorithm>
#include <deque>

namespace lockstep {
namespace {

// In a function, so that it is there before the first static object that adds an engine; a deque, so that
// what find_engine gave stays where it is.
std::deque<EngineKind>& kinds() {
  static std::deque<EngineKind> all;
  return all;
}

}  // namespace

void add_engine(EngineKind kind) {
  if (find_engine(kind.name) == nullptr) kinds().push_back(std::move(kind));
}

const EngineKind* find_engine(const std::string& name) {
  const auto found = std::ranges::find(kinds(), name, &EngineKind::name);
  return found == kinds().end() ? nullptr : &*found;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const EngineKind& kind : kinds()) names.push_back(kind.name);
  return names;
}

}  // namespace lockstep
