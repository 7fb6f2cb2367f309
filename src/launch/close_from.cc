#include "launch/close_from.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "launch/proc_listing.h"

namespace lockstep::launcher {
namespace {

// Beyond this nobody counts: a limit may be a billion, and each number costs a system call.
constexpr rlim_t kMostCounted = 1 << 20;

}  // namespace

void close_from(int first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
#endif
  const bool listed = for_each_number("/proc/self/fd", [first](int fd, int folder) {
    if (fd >= first && fd != folder) ::close(fd);
  });
  if (listed) return;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = kMostCounted;
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMostCounted));
  for (int fd = first; fd < end; ++fd) ::close(fd);
}

}  // namespace lockstep::launcher
