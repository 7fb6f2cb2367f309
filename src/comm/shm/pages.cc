#include "comm/shm/pages.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::shm {

int read_pages(pid_t pid, const void* from, std::span<std::byte> to) {
  const auto* source = static_cast<const std::byte*>(from);
  while (!to.empty()) {
    const iovec here{to.data(), to.size()};
    const iovec there{const_cast<std::byte*>(source), to.size()};
    const ssize_t n = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    // Less than all: the largest piece that one call takes, or up to a page that is not there, which the next
    // call says.
    to = to.subspan(static_cast<std::size_t>(n));
    source += n;
  }
  return 0;
}

std::string why_no_pages(int error) {
  switch (error) {
    case 0:
    case ESRCH: return "its process is another one here; pages needs all workers in one pid namespace";
    case ENOSYS:
      return "Function not implemented; pages needs process_vm_readv in the kernel and past seccomp";
    case EPERM:
    case EACCES:
      return std::string(std::strerror(error)) +
             "; pages needs workers of one user, 0 in /proc/sys/kernel/yama/ptrace_scope or the capability "
             "SYS_PTRACE, and in a container a seccomp profile that allows process_vm_readv";
    default: return std::strerror(error);
  }
}

}  // namespace lockstep::shm
