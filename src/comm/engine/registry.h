// Engines that a build may or may not have. A library of one (lockstep_mpi, lockstep_gloo) adds it when it is
// linked; init() asks here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/engine.h"
#include "lockstep/comm/group.h"

namespace lockstep {

// Makes this process's engine over all workers of the job. `world` is a group of them that works already
// (shared memory, or TCP) and that nobody else uses, or null when the engine finds its peers by itself (MPI).
// Collective.
using EngineMaker = std::function<std::unique_ptr<Engine>(const Group* world)>;

struct EngineKind {
  std::string name;  // "mpi", "gloo"
  bool finds_its_peers = false;
  EngineMaker make;
};

void add_engine(EngineKind kind);                        // called once per engine, before main or from it
const EngineKind* find_engine(const std::string& name);  // null when this build has none of that name
std::vector<std::string> engine_names();                 // those that were added

}  // namespace lockstep
