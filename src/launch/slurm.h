// An agent that srun started, once on each node, needs no flags: SLURM says who and where it is.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/slurm.h"

namespace lockstep::launcher {

struct SlurmNodes {
  int nodes = 1;
  int node = 0;
  std::string endpoint = {};  // slurm::endpoint
};

// None unless srun started one task on each of several nodes: in a batch script, or as one of several tasks
// of a node, a launcher is by itself. Throws UsageError naming a variable that makes no sense.
std::optional<SlurmNodes> slurm_nodes(const slurm::Lookup& environment);
std::optional<SlurmNodes> slurm_nodes();  // of this process

}  // namespace lockstep::launcher
