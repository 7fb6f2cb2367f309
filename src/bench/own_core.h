// Keeps the calling thread of a measuring worker on a core of its own. Two ranks that wake each other in turn
// otherwise end up on one core and stay there, since they are never runnable at the same time.
#pragma once

#include "base/cores.h"

namespace lockstep {

class OwnCore {
 public:
  // Binds the thread when there is a core for each of `workers`; core number `place` of those allowed.
  OwnCore(int place, int workers);
  ~OwnCore();  // as it was
  OwnCore(const OwnCore&) = delete;
  OwnCore& operator=(const OwnCore&) = delete;

 private:
  CoreMask before_;
};

}  // namespace lockstep
