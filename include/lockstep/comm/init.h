// How a program joins its peers.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

struct InitOptions {
  std::chrono::milliseconds timeout = {};       // for every operation; zero: LOCKSTEP_TIMEOUT_S
  std::chrono::milliseconds init_timeout = {};  // for all to come; zero: LOCKSTEP_INIT_TIMEOUT_S
  // Where the program's large buffers are, the same on all ranks. With `cuda` LOCKSTEP_ENGINE=auto is ipc on
  // one machine and nccl on several, and an engine that knows no GPUs is refused at once.
  Device::Kind device = Device::Kind::cpu;
};

// The group of all workers of the job, from the variables of `lockstep run`, torchrun, Open MPI, PMI or
// SLURM; with none of them a group of one. Throws UsageError when they contradict each other,
// TimeoutError naming the ranks that did not come.
Group init(InitOptions options = {});

// What the members of a group know of each other before it exists.
struct GroupPlan {
  // The same on all members, and new for each group that the job forms: "second", "epoch 7 of 5". The group's
  // name in messages.
  std::string id;
  int size = 0;
  int rank = -1;  // 0 to size - 1, each member its own
  // "host:port", where rank 0 listens, when members may be on several machines; the same on all. Empty:
  // MASTER_ADDR and MASTER_PORT, and shared memory alone where the whole job is on one machine.
  std::string endpoint = {};
};

// A group that its members form alone: no other group takes part, and none is needed. So the survivors of a
// failure go on, and a newcomer joins them:
//
//   catch (const PeerError&) {            // everybody but the lost rank gets here
//     world = form_group({.id = "second", .size = 3, .rank = new_rank});
//   }
//
// Members are workers of one job, as its launcher says to init(), or threads of one process where there is no
// launcher. Collective over the members. Every engine but MPI, whose ranks mpirun has fixed. Memory that
// other groups allocated is private memory here. Messages call its members by their ranks in this plan, also
// where the launcher knows them by others. Throws as init() does: UsageError when two members have one rank
// or sizes differ, TimeoutError naming the ranks that did not come.
Group form_group(const GroupPlan& plan, InitOptions options = {});

// `size` ranks in this process, for threads as ranks (tests, examples): element r belongs to rank r.
// `nodes` gives each rank's node, for trying hierarchical algorithms; empty: one node.
std::vector<Group> thread_groups(int size, InitOptions options = {}, std::vector<int> nodes = {});

}  // namespace lockstep
