#include "grad/bucket_slots.h"

#include <algorithm>

namespace lockstep {

CommMemory BucketSlots::take(std::size_t bytes) {
  while (!leaving_.empty() && (leaving_.size() >= under_way_ || leaving_.front().exchange.done())) {
    try {
      leaving_.front().exchange.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the end of the step's exchange throws it
    }
    free_.push_back(std::move(leaving_.front().slot));
    leaving_.pop_front();
  }
  const auto smaller = [](const CommMemory& a, const CommMemory& b) { return a.bytes() < b.bytes(); };
  std::ranges::sort(free_, smaller);
  const auto fits =
      std::ranges::find_if(free_, [&](const CommMemory& slot) { return slot.bytes() >= bytes; });
  if (fits != free_.end()) {
    CommMemory slot = std::move(*fits);
    free_.erase(fits);
    return slot;
  }
  // All too small: one of them makes room for one that fits, and will do for smaller buckets as well.
  if (!free_.empty()) {
    bytes_ -= free_.back().bytes();
    free_.pop_back();
  }
  CommMemory slot = group_.allocate(bytes, device_);
  bytes_ += slot.bytes();
  return slot;
}

void BucketSlots::leave(CommMemory slot, Work exchange) {
  leaving_.push_back({std::move(slot), std::move(exchange)});
}

}  // namespace lockstep
