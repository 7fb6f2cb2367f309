// The ranks of one machine: their arena, their meeting place, their engine.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/membership.h"
#include "comm/engine/shm_engine.h"
#include "lockstep/base/knobs.h"

namespace lockstep {

int cores_here();  // that this process may run on

// Which node each rank is on: one machine is one node, unless LOCKSTEP_NODE_SIZE pretends otherwise.
std::vector<int> pretended_nodes(int size, const Knobs& knobs);

// The engine of members on this machine that meet at `door` (shm/rendezvous.h). `nodes[r]`: the node that
// rank r is on or pretends to be on. Collective: throws as init() does.
std::unique_ptr<ShmEngine> local_world(const std::string& door, const Membership& who, std::vector<int> nodes,
                                       const Knobs& knobs);

// The same for ranks that are threads of this process: element r is rank r's.
std::vector<std::unique_ptr<ShmEngine>> local_threads(const std::string& group, std::vector<int> nodes,
                                                      const Knobs& knobs);

}  // namespace lockstep
