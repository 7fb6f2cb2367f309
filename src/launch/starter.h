// Starts the workers of a command (train, bench, tune), which report to it, and says how they ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "launch/worker_events.h"
#include "lockstep/base/fd.h"
#include "lockstep/launch/launcher.h"

namespace lockstep {

// Exit status of a worker that has told the parent why.
inline constexpr int kReported = 3;

struct StartOptions {
  std::vector<std::string> program;
  int workers = 1;
  bool with_mpi = false;  // by mpirun, which alone can make MPI processes; else by our launcher
  // Of our launcher. A benchmark's workers bind their measuring thread themselves (bench/own_core.h): a whole
  // worker bound to one core would share it with Gloo's own thread, which would be unfair to Gloo.
  Pinning pinning = Pinning::none;
  std::chrono::milliseconds grace{5000};  // from being told to stop to being killed
};

struct Starter {
  pid_t pid = 0;    // ends when all workers have
  UniqueFd errors;  // what the workers and their launcher wrote, to be read from the start
  UniqueFd report;  // how the workers ended, where one failed or had to be killed: the launcher's words
  std::string dump_dir = {};  // for flight recorders, in the temporary folder; empty when the user named one
};

// Is there an mpirun on the path?
bool has_mpirun();

// This program's own file.
std::string own_path();

// How the workers ended, in the launcher's words: several lines, or none.
std::string launchers_words(const Starter& starter);

// Flight recorders of workers that only waited for one who knows why it failed, or that were told to stop,
// help nobody: they are removed, unless the user named their folder.
void forget_dumps(const Starter& starter);

// Says what went wrong, if anything did, and gives the exit status: a usage error is thrown for the frame to
// print. Where no worker knows why, the launcher's words follow. `wait_status` is the starter's;
// `interrupted_by` the signal at which this command stopped, which explains all else; 0: none.
int conclude(const std::string& command, const std::vector<WorkerError>& errors, const Starter& starter,
             int wait_status, int interrupted_by = 0);

// Throws SystemError.
Starter start_workers(const StartOptions& options);

}  // namespace lockstep
