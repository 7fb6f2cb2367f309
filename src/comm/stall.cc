#include "comm/stall.h"

#include "lockstep/base/clock.h"
#include "lockstep/base/log.h"

namespace lockstep {

bool Stall::due(std::int64_t since_ns) {
  if (warn_after_.count() == 0) return false;
  if (since_ns != since_ns_) {
    since_ns_ = since_ns;
    next_ns_ = since_ns + warn_after_.count();
  }
  return now_ns() >= next_ns_;
}

void Stall::say(const Sight& sight) {
  const std::int64_t waited_ns = now_ns() - since_ns_;
  next_ns_ = since_ns_ + 2 * waited_ns;
  const double seconds = static_cast<double>(waited_ns) * 1e-9;
  log().warn("{} has waited {:.{}f} s for {} in {}", sight.who, seconds, seconds < 9.95 ? 1 : 0, sight.whom,
             sight.where);
}

}  // namespace lockstep
