#include "comm/engine/registry.h"

#include <algorithm>
#include <deque>

#include "comm/engine/channel_engine.h"
#include "comm/engine/known_engines.h"
#include "comm/engine/shm_engine.h"

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

std::vector<EngineView> all_engines() {
  const std::vector<int> one_node = {0, 0};
  const std::vector<int> two_nodes = {0, 1};
  std::vector<EngineView> views;
  for (const KnownEngine& known : kKnownEngines) {
    EngineView view{.name = known.name, .about = known.about, .can = {}, .missing = {}};
    const EngineKind* const kind = find_engine(known.name);
    if (kind != nullptr)
      view.can = kind->can();
    else if (view.name == "shm")
      view.can = shm_capabilities(one_node, {});
    else if (view.name == "tcp")
      view.can = channel_capabilities(two_nodes);
    else
      view.missing = std::string("install ") + known.package + " and configure with " + known.option + "=ON";
    views.push_back(std::move(view));
  }
  for (const EngineKind& kind : kinds())
    if (std::ranges::find(views, kind.name, &EngineView::name) == views.end())
      views.push_back(
          {.name = kind.name, .about = "added by this program", .can = kind.can(), .missing = {}});
  return views;
}

}  // namespace lockstep
