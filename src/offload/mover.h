// Runs of bytes of any length to and from a scratch file, cut into pieces of which several are under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>

#include "lockstep/offload/offload.h"
#include "offload/transfers.h"

namespace lockstep {

// Used by one thread. A failure stays: whoever waits from then on gets OffloadError. Behind one of begin()
// nothing is under way any more, and nothing is begun: memory of all that was begun is its owners' again.
class Mover {
 public:
  using Ticket = std::size_t;

  // `file` outlives it, and so does the memory of what was begun.
  Mover(const ScratchFile& file, OffloadIo io);

  // `at`, the address and the length are multiples of ScratchFile::kAlign. Returns at once. Throws
  // OffloadError.
  Ticket begin(Transfer::Way way, std::uint64_t at, std::span<std::byte> bytes);
  // Until all of it is through. Throws OffloadError.
  void wait(Ticket ticket);
  bool done(Ticket ticket);

  const char* io_name() const { return transfers_->name(); }
  // That wait() and begin() took, so far.
  std::int64_t waited_ns() const { return waited_ns_; }

 private:
  void pump();  // throws OffloadError, behind which nothing is under way
  void break_off() noexcept;
  bool end_one(Wait wait);  // false: none is through

  std::deque<Transfer> queue_;          // pieces that are not begun; their tag is the ticket
  std::map<Ticket, std::size_t> left_;  // pieces that are not through
  Ticket next_ = 0;
  std::size_t under_way_ = 0;
  bool broken_ = false;  // nothing can be begun any more
  std::int64_t waited_ns_ = 0;
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace lockstep
