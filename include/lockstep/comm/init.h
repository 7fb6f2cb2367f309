// How a program joins its peers.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

struct InitOptions {
  std::chrono::milliseconds timeout = {};  // for every operation; zero: LOCKSTEP_TIMEOUT_S
};

// The group of all workers of the job, from the variables of `lockstep run`, torchrun, Open MPI, PMI or
// SLURM; with none of them a group of one. Throws UsageError when they contradict each other,
// TimeoutError naming the ranks that did not come.
Group init(InitOptions options = {});

// `size` ranks in this process, for threads as ranks (tests, examples): element r belongs to rank r.
// `nodes` gives each rank's node, for trying hierarchical algorithms; empty: one node.
std::vector<Group> thread_groups(int size, InitOptions options = {}, std::vector<int> nodes = {});

}  // namespace lockstep
