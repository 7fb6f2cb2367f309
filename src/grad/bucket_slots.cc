#include "grad/bucket_slots.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kFirstInVain{200};
constexpr int kPartInVain = 50;
constexpr int kTimesAsLong = 10;

}  // namespace

// On a device the memory goes on in the order of the streams as soon as the exchange has been put there:
// nobody waits for its end.
bool BucketSlots::is_over(const Work& exchange) {
  if (exchange.done()) return true;
  if (leaving_.size() < in_a_row()) return false;
  if (bounded()) {
    exchange.wait();
    return true;
  }
  const auto lived =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - made_);
  const auto may_wait = std::min(patience_, kFirstInVain + lived / kPartInVain - in_vain_);
  if (may_wait <= std::chrono::milliseconds(0)) return false;
  const bool over = exchange.wait_for(may_wait);
  if (!over) in_vain_ += may_wait;
  return over;
}

void BucketSlots::learn(const WorkTiming& timing) {
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(timing.end_ns - timing.begin_ns));
  patience_ = std::min(std::max(patience_, kPatience + kTimesAsLong * took), kMostPatience);
}

CommMemory BucketSlots::take(std::size_t bytes) {
  while (!leaving_.empty()) {
    try {
      if (!is_over(leaving_.front().exchange)) break;
      leaving_.front().exchange.wait();
      learn(leaving_.front().exchange.timing());
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
  // All too small. Of many one makes room for one that fits, and will do for smaller buckets as well; of a
  // few each stays with its bucket: in the place of a large one a small one would keep that from its own.
  if (!free_.empty() && slots_ >= in_a_row() + filled_) {
    bytes_ -= free_.back().bytes();
    --slots_;
    free_.pop_back();
  }
  CommMemory slot = group_.allocate(bytes, device_);
  bytes_ += slot.bytes();
  ++slots_;
  return slot;
}

void BucketSlots::leave(CommMemory slot, Work exchange) {
  leaving_.push_back({std::move(slot), std::move(exchange)});
}

}  // namespace lockstep
