// A pretended machine that may have more cores than a cpu_set_t has room for: sched_getaffinity and
// sched_setaffinity in place of the C library's, for the whole program. For one file of a program.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

namespace lockstep::test {

// Those that the calling thread may run on there; none: it sees the real machine.
inline std::vector<int>& pretended_cores() {
  static thread_local std::vector<int> cores;
  return cores;
}

inline constexpr std::size_t kPretendedMaskBytes = 256;  // 2,048 cores, in use or not

}  // namespace lockstep::test

extern "C" int sched_getaffinity(pid_t pid, std::size_t bytes, cpu_set_t* set) noexcept {
  const std::vector<int>& cores = lockstep::test::pretended_cores();
  if (cores.empty()) {
    const long filled = ::syscall(SYS_sched_getaffinity, pid, bytes, set);
    if (filled < 0) return -1;
    const auto told = static_cast<std::size_t>(filled);
    std::memset(reinterpret_cast<char*>(set) + told, 0, bytes - told);
    return 0;
  }
  if (bytes < lockstep::test::kPretendedMaskBytes) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), bytes, set);
  return 0;
}

extern "C" int sched_setaffinity(pid_t pid, std::size_t bytes, const cpu_set_t* set) noexcept {
  std::vector<int>& cores = lockstep::test::pretended_cores();
  if (cores.empty()) return static_cast<int>(::syscall(SYS_sched_setaffinity, pid, bytes, set));
  cores.clear();
  for (std::size_t core = 0; core < 8 * bytes; ++core)
    if (CPU_ISSET_S(core, bytes, set)) cores.push_back(static_cast<int>(core));
  return 0;
}
