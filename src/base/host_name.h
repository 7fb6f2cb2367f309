// What this machine calls itself.
#pragma once

#include <unistd.h>

#include <string>

namespace lockstep {

inline std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unnamed host";
  return name;
}

}  // namespace lockstep
