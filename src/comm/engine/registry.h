// The engines of this program. Each is added by one file (world/shm_register.cc, mpi_register.cc, …) that
// says what it is and how one is made; init() asks here, and composes any two of which one can be inside and
// one across.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/call/engine.h"
#include "comm/engine/known_engines.h"
#include "comm/engine/membership.h"
#include "lockstep/base/knobs.h"

namespace lockstep {

// Makes this process's engine over the group's members. `carrier`, where the engine meets over another, is
// one of the same ranks that works already and that nobody else uses; else null. Collective.
using EngineMaker = std::function<std::unique_ptr<Engine>(const Membership& who, const Knobs& knobs,
                                                          std::shared_ptr<Engine> carrier)>;

struct EngineKind {
  EngineProfile profile;
  std::function<Capabilities()> can;  // what it can do, as far as that is known before there is a group
  EngineMaker make;
  std::vector<std::string> forced = {};  // what LOCKSTEP_ALGORITHM may name with it besides our algorithms
};

// Called once per engine, before main or from it, and before the first group. Throws UsageError for a name
// that is taken or that LOCKSTEP_ENGINE could not say. True, for a constant that does it before main.
bool add_engine(EngineKind kind);
// Null when this program has none of that name.
const EngineKind* find_engine(std::string_view name);
// Those that were added: as in known_engines.h, then the others.
std::vector<EngineProfile> engine_profiles();

// Every engine that there is (known_engines.h), and those that were added besides.
struct EngineView {
  EngineProfile profile;
  Capabilities can;     // nothing when it is missing
  std::string missing;  // why this program has it not; empty: it has
};
std::vector<EngineView> all_engines();

}  // namespace lockstep
