#include "cli/lost_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace lockstep::cli {

std::string lost_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::cout.flush().good() && std::ferror(stdout) == 0) return "";
  return std::string("standard output can't be written, and a part of it is lost") +
         (errno != 0 ? std::string(": ") + std::strerror(errno) : "; is its disk full?");
}

}  // namespace lockstep::cli
