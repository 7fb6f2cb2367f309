// Which engine a group gets: what LOCKSTEP_ENGINE asks for, against what the registry has and its engines
// declare (comm/engine/known_engines.h). No engine is named here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/engine/registry.h"

namespace lockstep {

struct EngineChoice {
  EngineProfile engine;  // of all ranks or, where there is one inside, across nodes
  std::optional<EngineProfile> inside = {};
  std::string word() const;  // as LOCKSTEP_ENGINE says it: "tcp", "shm+tcp"
};

// What `knobs.engine` means for this group. Throws UsageError, before anybody is waited for, for a word that
// names no engine, for two that can't be composed, and for what this group can't have. `device`: what the
// engine has to work on besides host memory.
EngineChoice choose_engine(const Knobs& knobs, const Membership& who, bool started_by_mpi,
                           Device::Kind device = Device::Kind::cpu);

// Makes it. Collective. Throws UsageError where this program was built without a part of it.
std::unique_ptr<Engine> make_engine(const EngineChoice& choice, const Membership& who, const Knobs& knobs);

}  // namespace lockstep
