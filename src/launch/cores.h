// Cores that this process may use, and their division among workers.
#pragma once

#include <vector>

namespace lockstep::launcher {

constexpr int kMostCpus = 8192;  // that the kernel numbers

struct Core {
  int cpu = 0;       // the kernel's number
  int package = 0;   // socket
  int physical = 0;  // hardware threads of one physical core share it, within a package
};

// The cores in this process's affinity mask, hardware threads of one physical core side by side.
std::vector<Core> usable_cores();

// The kernel's numbers of each worker's cores: contiguous, disjoint, nearly equal shares. With more workers
// than cores all are empty: nobody is pinned.
std::vector<std::vector<int>> divide_cores(const std::vector<Core>& cores, int workers);

}  // namespace lockstep::launcher
