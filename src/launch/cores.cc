#include "launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <tuple>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

int topology(int cpu, const char* what) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + what);
  int value = 0;
  return file >> value ? value : -1;
}

}  // namespace

std::vector<Core> usable_cores() {
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  std::vector<Core> cores;
  if (set != nullptr && ::sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (!CPU_ISSET_S(cpu, bytes, set)) continue;
      const int physical = topology(cpu, "core_id");
      cores.push_back({.cpu = cpu,
                       .package = topology(cpu, "physical_package_id"),
                       .physical = physical < 0 ? cpu : physical});
    }
  }
  if (set != nullptr) CPU_FREE(set);
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.package, a.physical, a.cpu) < std::tie(b.package, b.physical, b.cpu);
  });
  return cores;
}

std::vector<std::vector<int>> divide_cores(const std::vector<Core>& cores, int workers) {
  std::vector<std::vector<int>> shares(static_cast<std::size_t>(workers));
  const int count = static_cast<int>(cores.size());
  if (count < workers) return shares;
  for (int rank = 0; rank < workers; ++rank)
    for (int i = rank * count / workers; i < (rank + 1) * count / workers; ++i)
      shares[static_cast<std::size_t>(rank)].push_back(cores[static_cast<std::size_t>(i)].cpu);
  return shares;
}

}  // namespace lockstep::launcher

namespace lockstep {

int available_cores() { return std::max<int>(1, static_cast<int>(launcher::usable_cores().size())); }

}  // namespace lockstep
