// One worker process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep::launcher {

struct SpawnOptions {
  std::string path = {};  // the program's file
  std::vector<std::string> arguments = {};
  std::vector<std::string> environment = {};  // "NAME=value"
  std::vector<int> cpus = {};                 // to run on; empty: as the launcher
  int in = 0;                                 // become its standard input, output and error
  int out = 1;
  int err = 2;
  sigset_t signals{};  // its signal mask
};

// Starts a process that leads a process group of its own and dies with the launcher. Comes back when the
// program has been loaded. Throws SystemError with the reason when it can't be.
pid_t spawn(const SpawnOptions& options);

}  // namespace lockstep::launcher
