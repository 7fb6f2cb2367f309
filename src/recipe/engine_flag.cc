#include "recipe/engine_flag.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/environment.h"
#include "base/suggest.h"
#include "comm/engine/known_engines.h"
#include "lockstep/base/error.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

// This program may be built without comm: what its build has is told by the compiler.
bool built(const EngineProfile& engine) {
#ifdef LOCKSTEP_HAS_MPI
  if (std::string_view(engine.name) == "mpi") return true;
#endif
#ifdef LOCKSTEP_HAS_GLOO
  if (std::string_view(engine.name) == "gloo") return true;
#endif
#ifdef LOCKSTEP_HAS_CUDA
  if (std::string_view(engine.name) == "ipc") return true;
#endif
#ifdef LOCKSTEP_HAS_NCCL
  if (std::string_view(engine.name) == "nccl") return true;
#endif
  return *engine.option == '\0';
}

// What of `engine` this build lacks; null: nothing.
const EngineProfile* missing_part(const std::string& engine) {
  for (const EngineProfile& part : kKnownEngines)
    if (!built(part) && engine.ends_with(part.name)) return &part;
  return nullptr;
}

std::vector<std::string> words(const std::vector<std::string>& besides) {
  std::vector<std::string> all = engine_words();
  all.insert(all.end(), besides.begin(), besides.end());
  return all;
}

}  // namespace

std::vector<std::string> missing_engines() {
  std::vector<std::string> missing;
  for (const std::string& engine : engine_words())
    if (missing_part(engine) != nullptr) missing.push_back(engine);
  return missing;
}

std::string accepted_engines(const std::vector<std::string>& besides) {
  const std::vector<std::string> missing = missing_engines();
  return fmt::format(
      "{}{}", fmt::join(words(besides), ", "),
      missing.empty() ? "" : fmt::format(" (not in this build: {})", fmt::join(missing, ", ")));
}

void check_engine(const std::string& flag, const std::string& value,
                  const std::vector<std::string>& besides) {
  const std::vector<std::string> known = words(besides);
  if (std::ranges::find(known, value) == known.end()) {
    const std::string guess = nearest(value, known);
    throw UsageError(fmt::format("{} '{}' is not understood; accepted: {}{}", flag, value,
                                 accepted_engines(besides),
                                 guess.empty() ? "" : fmt::format(". Did you mean '{}'?", guess)));
  }
  if (const EngineProfile* const part = missing_part(value))
    throw UsageError(
        fmt::format("{} {}: this build has no {}; install {} and configure with {}=ON; accepted: {}", flag,
                    value, part->name, part->package, part->option, accepted_engines(besides)));
}

void use_engine(const std::string& engine) {
  if (!engine.empty())
    ::setenv("LOCKSTEP_ENGINE", engine.c_str(), 1);
  else if (const auto variable = read_filled_variable("LOCKSTEP_ENGINE"))
    check_engine("LOCKSTEP_ENGINE", *variable);
}

}  // namespace lockstep
