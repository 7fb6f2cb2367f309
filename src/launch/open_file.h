// Descriptors for a worker's streams.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

inline UniqueFd open_or_throw(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!fd) throw SystemError("can't open " + path, errno);
  return fd;
}

inline UniqueFd copy_of(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) throw SystemError("can't copy descriptor " + std::to_string(fd) + " for a worker", errno);
  return copy;
}

}  // namespace lockstep::launcher
