#include "report/byte_progress.h"

#include <utility>

#include "lockstep/base/bytes.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kShowInterval{100};

}  // namespace

ByteProgress::ByteProgress(std::string what, std::uint64_t total_bytes)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      wanted_(is_terminal(2)),
      next_(Clock::now() + kShowInterval) {}

void ByteProgress::add(std::uint64_t bytes) {
  done_bytes_ += bytes;
  if (!wanted_ || Clock::now() < next_) return;
  next_ = Clock::now() + kShowInterval;
  progress_.show(what_ + ": " + format_bytes(done_bytes_) + " of " + format_bytes(total_bytes_));
}

}  // namespace lockstep
