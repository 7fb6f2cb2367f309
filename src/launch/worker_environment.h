// What a worker is told about itself.
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// The same for all workers of one start of the group.
struct StartNames {
  std::string job = {};       // LOCKSTEP_JOB
  std::string dump_dir = {};  // LOCKSTEP_DUMP_DIR
  int restart = 0;
  int master_port = 0;
};

// The launcher's environment with the worker's variables in it, as "NAME=value". OMP_NUM_THREADS stays
// as the user set it.
std::vector<std::string> worker_environment(const LaunchOptions& options, const StartNames& names, int rank,
                                            int threads);

// A TCP port that nobody listens on just now. Nothing stays bound: whoever needs it takes it.
int free_port();

// 32 random hexadecimal digits.
std::string random_name();

}  // namespace lockstep::launcher
