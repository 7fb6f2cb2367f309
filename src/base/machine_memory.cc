#include "base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/split.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A container may see its own group as the root of the mount, whatever path it is told: the groups that are
// not there are passed over.
double limit_along(const fs::path& mount, const std::string& group, const char* file) {
  double least = std::numeric_limits<double>::infinity();
  for (fs::path at = fs::path(group).lexically_normal().relative_path();; at = at.parent_path()) {
    double bytes = 0;
    if (std::ifstream(mount / at / file) >> bytes) least = std::min(least, bytes);  // "max" is no number
    if (at.empty()) return least;
  }
}

}  // namespace

double memory_limit(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  double least = std::numeric_limits<double>::infinity();
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,memory:/a/b", "0::/a/b"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty())
      for (const fs::path& mount : {mounts, mounts / "unified"})
        least = std::min(least, limit_along(mount, group, "memory.max"));
    else if (std::ranges::count(split_at_commas(controllers), "memory") > 0)
      least = std::min(least, limit_along(mounts / "memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

double machine_memory() {
  const double all =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return std::min(all, memory_limit());
}

}  // namespace lockstep
