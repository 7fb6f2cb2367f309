// Engines that a build may or may not have. A library of one (lockstep_mpi, lockstep_gloo) adds it when it is
// linked; init() asks here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/call/engine.h"

namespace lockstep {

// Makes this process's engine over all workers of the job. `carrier` is an engine over them that works
// already (shared memory, or TCP) and that nobody else uses, or null when the new one finds its peers by
// itself (MPI). Collective.
using EngineMaker = std::function<std::unique_ptr<Engine>(std::shared_ptr<Engine> carrier)>;

struct EngineKind {
  std::string name;                   // "mpi", "gloo"
  std::function<Capabilities()> can;  // what it can do, as far as that is known before there is a group
  bool finds_its_peers = false;
  EngineMaker make;
};

void add_engine(EngineKind kind);                        // called once per engine, before main or from it
const EngineKind* find_engine(const std::string& name);  // null when this build has none of that name
std::vector<std::string> engine_names();                 // those that were added

// Every engine that there is (known_engines.h), and those that were added besides.
struct EngineView {
  std::string name;
  std::string about;    // for people
  Capabilities can;     // nothing when it is missing
  std::string missing;  // why this program has it not; empty: it has
};
std::vector<EngineView> all_engines();

}  // namespace lockstep
