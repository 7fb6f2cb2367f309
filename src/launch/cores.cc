#include "launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

constexpr int kMostCpus = 8192;

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

std::vector<Share> divide_cores(const std::vector<Core>& cores, int workers, double quota) {
  std::vector<Share> shares(static_cast<std::size_t>(workers));
  const int count = static_cast<int>(cores.size());
  if (count < workers) return shares;
  for (int rank = 0; rank < workers; ++rank) {
    Share& share = shares[static_cast<std::size_t>(rank)];
    std::set<std::pair<int, int>> physical;
    for (int i = rank * count / workers; i < (rank + 1) * count / workers; ++i) {
      const Core& core = cores[static_cast<std::size_t>(i)];
      share.cpus.push_back(core.cpu);
      physical.emplace(core.package, core.physical);
    }
    share.threads = static_cast<int>(physical.size());
    if (quota > 0) share.threads = std::clamp(static_cast<int>(quota / workers), 1, share.threads);
  }
  return shares;
}

double cpu_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

}  // namespace lockstep::launcher

namespace lockstep {

int available_cores() { return std::max<int>(1, static_cast<int>(launcher::usable_cores().size())); }

}  // namespace lockstep
