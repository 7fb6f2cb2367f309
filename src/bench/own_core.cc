#include "bench/own_core.h"

#include <cstddef>

namespace lockstep {

OwnCore::OwnCore(int place, int workers) : before_(allowed_cores()) {
  if (static_cast<int>(before_.count()) < workers) return;
  int seen = 0;
  for (std::size_t core = 0; core < before_.size(); ++core) {
    if (!before_[core] || seen++ != place) continue;
    CoreMask one;
    one.set(core);
    allow_cores(one);
    return;
  }
}

OwnCore::~OwnCore() {
  if (before_.any()) allow_cores(before_);
}

}  // namespace lockstep
