// Cores that this process may use, and their division among workers.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

struct Core {
  int cpu = 0;       // the kernel's number
  int package = 0;   // socket
  int physical = 0;  // hardware threads of one physical core share it, within a package
};

// The cores in this process's affinity mask, hardware threads of one physical core side by side.
std::vector<Core> usable_cores();

struct Share {
  std::vector<int> cpus = {};  // to pin to; empty: don't pin
  int threads = 1;             // for OMP_NUM_THREADS
};

// Contiguous, disjoint, nearly equal shares; with more workers than cores nobody is pinned and everyone
// gets one thread. `quota` is the container's limit in cores, 0 when it has none.
std::vector<Share> divide_cores(const std::vector<Core>& cores, int workers, double quota);

// The CPU limit of this process's control group in cores, 0 when it has none.
double cpu_quota();

}  // namespace lockstep::launcher
