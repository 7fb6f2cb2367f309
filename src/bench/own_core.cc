#include "bench/own_core.h"

namespace lockstep {

OwnCore::OwnCore(int place, int workers) {
  CPU_ZERO(&before_);
  if (::sched_getaffinity(0, sizeof before_, &before_) != 0 || CPU_COUNT(&before_) < workers) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before_) || seen++ != place) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

OwnCore::~OwnCore() {
  if (CPU_COUNT(&before_) > 0) ::sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace lockstep
