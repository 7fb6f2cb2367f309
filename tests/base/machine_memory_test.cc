#include "base/machine_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <map>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The limit of a process on a machine with these files and no others.
double limit_with(const std::map<std::string, std::string>& files) {
  std::string root = (fs::temp_directory_path() / "lockstep-memory-XXXXXX").string();
  if (::mkdtemp(root.data()) == nullptr) return -1;
  for (const auto& [name, text] : files) {
    const fs::path file = fs::path(root) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const double limit = memory_limit(root);
  fs::remove_all(root);
  return limit;
}

TEST(MachineMemory, TheLeastLimitOnTheWayCounts) {
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "0::/a/b\n"},
                        {"sys/fs/cgroup/a/b/memory.max", "max\n"},
                        {"sys/fs/cgroup/a/memory.max", "1073741824\n"},
                        {"sys/fs/cgroup/c/memory.max", "5\n"}}),
            0x1p30);
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "0::/a/b\n"},
                        {"sys/fs/cgroup/a/b/memory.max", "4096\n"},
                        {"sys/fs/cgroup/a/memory.max", "8192\n"}}),
            4096);
}

TEST(MachineMemory, AContainerSeesItsOwnGroupAsTheRoot) {
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "4096\n"}}), 4096);
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "0::/docker/0123\n"}, {"sys/fs/cgroup/memory.max", "4096\n"}}),
            4096);
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "0::/../other\n"}, {"sys/fs/cgroup/memory.max", "4096\n"}}),
            4096);
}

TEST(MachineMemory, TheFirstVersionOfGroupsIsReadToo) {
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "9:cpu,memory:/a\n8:memory_other:/b\n0::/\n"},
                        {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n"},
                        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                        {"sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1\n"}}),
            4096);
  EXPECT_EQ(limit_with({{"proc/self/cgroup", "9:memory:/a\n0::/a\n"},
                        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                        {"sys/fs/cgroup/unified/a/memory.max", "8192\n"}}),
            8192);
}

TEST(MachineMemory, WithoutGroupsThereIsNoLimit) {
  for (const char* groups : {"", "0::/\n", "nonsense\n", "0::\n", "::\n"})
    EXPECT_TRUE(std::isinf(limit_with({{"proc/self/cgroup", groups}}))) << groups;
  EXPECT_TRUE(std::isinf(limit_with({})));
  EXPECT_GT(machine_memory(), 1 << 20);
  EXPECT_LE(machine_memory(), memory_limit());
}

}  // namespace
}  // namespace lockstep
