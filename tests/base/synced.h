// What was synced: fsync in place of the C library's, for the whole program. For one file of a program.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>

namespace lockstep::test {

// The paths, as the kernel knows them.
inline std::set<std::string>& synced() {
  static std::set<std::string> paths;
  return paths;
}

}  // namespace lockstep::test

extern "C" int fsync(int fd) {
  std::array<char, 4096> path{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  if (length > 0) lockstep::test::synced().insert(std::string(path.data(), static_cast<std::size_t>(length)));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
