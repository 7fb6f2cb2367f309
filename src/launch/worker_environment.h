// What a worker is told about itself.
#pragma once

#include <string>
#include <vector>

#include "launch/job.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// The same for all workers of this machine in one start of the group.
struct Start {
  Job job = {};
  std::string dump_dir = {};  // LOCKSTEP_DUMP_DIR
  int restart = 0;
};

// The launcher's environment with the worker's variables in it, as "NAME=value". The secret that the agents
// share is not passed on: workers have one of their own.
std::vector<std::string> worker_environment(const LaunchOptions& options, const Start& start, int local_rank);

// A TCP port of this machine's `address` (numeric) that nobody has just now, and none that the system gives
// to connections that go out, which would often take it first. Nothing stays bound: whoever needs it takes
// it.
int free_port(const std::string& address = "127.0.0.1");

// 32 random hexadecimal digits.
std::string random_name();

// What the workers call this start of the job (Identity::job), in their dumps too.
std::string name_for_workers(const Start& start);

}  // namespace lockstep::launcher
