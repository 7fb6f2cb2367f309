#include "offload/mover.h"

#include <algorithm>
#include <new>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;  // disks get hardly faster beyond
constexpr std::size_t kMostPieces = 8;                     // under way

class Stopwatch {
 public:
  explicit Stopwatch(std::int64_t& sum) : sum_(sum), since_(now_ns()) {}
  ~Stopwatch() { sum_ += now_ns() - since_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::int64_t& sum_;
  std::int64_t since_;
};

OffloadError has_failed() { return OffloadError("a transfer of the scratch file has failed before"); }

}  // namespace

Mover::Mover(const ScratchFile& file, OffloadIo io) : transfers_(make_transfers(file, kMostPieces, io)) {}

Mover::Ticket Mover::begin(Transfer::Way way, std::uint64_t at, std::span<std::byte> bytes) {
  const Stopwatch watch(waited_ns_);
  if (broken_) throw has_failed();
  const Ticket ticket = next_++;
  try {
    for (std::size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      const std::size_t length = std::min(kPieceBytes, bytes.size() - begin);
      queue_.push_back({.way = way, .at = at + begin, .bytes = bytes.subspan(begin, length), .tag = ticket});
      ++left_[ticket];
    }
  } catch (const std::bad_alloc&) {
    break_off();
    throw;
  }
  pump();
  return ticket;
}

void Mover::pump() try {
  for (; !queue_.empty() && under_way_ < kMostPieces; ++under_way_) {
    transfers_->begin(queue_.front());
    queue_.pop_front();
  }
} catch (...) {
  break_off();
  throw;
}

// Whoever hears of a piece that can't be begun lets go of the memory of those that were begun before, and of
// those that were to follow.
void Mover::break_off() noexcept {
  broken_ = true;
  queue_.clear();
  transfers_->abandon();
  under_way_ = 0;
}

bool Mover::end_one(Wait wait) {
  if (broken_) return false;
  std::optional<std::size_t> ticket;
  try {
    ticket = transfers_->take(wait);
  } catch (const OffloadError&) {  // its ticket is never through
    --under_way_;
    throw;
  }
  if (!ticket) return false;
  --under_way_;
  if (--left_[*ticket] == 0) left_.erase(*ticket);
  pump();
  return true;
}

void Mover::wait(Ticket ticket) {
  const Stopwatch watch(waited_ns_);
  while (left_.contains(ticket))
    if (!end_one(Wait::yes)) throw has_failed();
}

bool Mover::done(Ticket ticket) {
  while (left_.contains(ticket) && end_one(Wait::no)) {
  }
  return !left_.contains(ticket);
}

}  // namespace lockstep
