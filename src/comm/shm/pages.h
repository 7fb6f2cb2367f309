// Reading the memory of another process, as far as the kernel allows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace lockstep::shm {

// Copies what lies at `from` in process `pid` to `to`. 0, or the errno that ended it, some of it copied then;
// ESRCH: the process is gone.
int read_pages(pid_t pid, const void* from, std::span<std::byte> to);

// Why the kernel refuses that and what would help, for people; `error` as read_pages gives it. 0: what was
// read is not what is there, so that the number must be another process's.
std::string why_no_pages(int error);

}  // namespace lockstep::shm
