// How much memory this machine has.
#pragma once

#include <unistd.h>

namespace lockstep {

// In bytes, free or not.
inline double machine_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace lockstep
