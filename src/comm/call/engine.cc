#include "comm/call/engine.h"

namespace lockstep {

void Engine::fail(const Error& error) noexcept {
  tell_failure(error);
  if (failure_) return;
  try {
    check(News::known);
    failure_ = record_of(error);
  } catch (const Error& first) {
    failure_ = record_of(first);
  }
}

SystemError Engine::out_of_memory(const Call& call) const {
  const RankNames names = rank_names();
  return SystemError(names.named(rank()) + " is out of memory in " + call.where(names.group()));
}

}  // namespace lockstep
