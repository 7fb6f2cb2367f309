#include <algorithm>

#include "comm/call.h"
#include "comm/work_state.h"

namespace lockstep {

bool Work::done() const {
  if (state_ == nullptr) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Work::wait() const {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

WorkTiming Work::timing() const {
  if (state_ == nullptr) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->done ? state_->timing : WorkTiming();
}

bool Work::wait_for(std::chrono::milliseconds timeout) const {
  if (state_ == nullptr) return true;
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, std::min(timeout, kLongestTimeout), [&] { return state_->done; }))
    return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

}  // namespace lockstep
