#include "parallel/gathered_memory.h"

#include <algorithm>

namespace lockstep {

// The oldest first.
void GatheredMemory::let_go_beyond(std::size_t bytes) {
  while (held_ > bytes && !free_.empty()) {
    held_ -= free_.front().bytes;
    free_.erase(free_.begin());
  }
}

CommMemory GatheredMemory::take(std::size_t bytes) {
  taken_ += bytes;
  const auto fits = std::ranges::find_if(free_, [&](const Piece& piece) { return piece.bytes == bytes; });
  if (fits != free_.end()) {
    CommMemory memory = std::move(fits->memory);
    free_.erase(fits);
    return memory;
  }
  let_go_beyond(budget_ > bytes ? budget_ - bytes : 0);
  CommMemory memory = group_.allocate(std::max<std::size_t>(1, bytes));
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  return memory;
}

void GatheredMemory::give_back(CommMemory memory, std::size_t bytes) {
  taken_ -= bytes;
  free_.push_back({std::move(memory), bytes});
  let_go_beyond(budget_);
}

}  // namespace lockstep
