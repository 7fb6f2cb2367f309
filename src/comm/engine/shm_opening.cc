// How a collective opens in shared memory: everybody posts a descriptor, all meet, and everybody reads
// everybody's.
#include <cstring>

#include "comm/agree/mismatch.h"
#include "comm/engine/shm_engine.h"

namespace lockstep {
namespace {

using shm::Descriptor;
using shm::kAbsent;
using shm::kPrivate;
using shm::Seat;

// Does this rank's input matter to anybody?
bool gives(const Call& call, int rank) {
  const bool from_root = call.what == Collective::broadcast || call.what == Collective::scatter;
  return call.in != nullptr && (!from_root || rank == call.root);
}

}  // namespace

void ShmEngine::gather(const Call& call, const Algorithm* planned, std::int64_t first, std::int64_t second) {
  ++round_;
  const std::size_t in_bytes = input_bytes(call.what, call.bytes(), size());
  Seat& seat = meeting_.own_seat();
  Descriptor& d = seat.descriptor[round_ % 2];
  write_card(d.card, call, selector_.forced());  // LOCKSTEP_ALGORITHM may differ between ranks
  d.payload[0] = first;
  d.payload[1] = second;
  const auto place = [&](const void* data) {
    return data == nullptr ? kAbsent : session_->arena().offset_of(data, 1).value_or(kPrivate);
  };
  d.in_offset = place(call.in);
  d.out_offset = place(call.out);
  d.in_address = reinterpret_cast<std::uintptr_t>(call.in);
  d.out_address = reinterpret_cast<std::uintptr_t>(call.out);
  d.posts = planned != nullptr && planned->needs().posts ? 1 : 0;
  d.unreadable = planned != nullptr && planned->needs().pages && !readable(call) ? 1 : 0;
  if (d.posts != 0 && gives(call, rank()) && in_bytes > 0)
    std::memcpy(seat.eager[round_ % 2], call.in, in_bytes);
  meeting_.barrier();
  // Where the buffers are comes from the peers' cores while the cards are compared.
  for (int r = 0; d.posts == 0 && r < size(); ++r) __builtin_prefetch(&descriptor(r).in_offset);
  compare();
}

// Everybody sees the same cards and writes the same line.
void ShmEngine::compare() {
  if (all_same(size(), [&](int r) -> const CallCard& { return descriptor(r).card; })) return;
  std::vector<Caller> callers;
  for (int r = 0; r < size(); ++r) callers.push_back({r, descriptor(r).card});
  meeting_.fail(MismatchError(who_called_what(rank_names(), callers)));
  meeting_.rethrow();
}

// Everybody sees the same descriptors, so everybody comes to the same answer.
const Algorithm* ShmEngine::agree(const Call& call, const Algorithm* planned) const {
  if (!call.algorithm.empty()) return planned;
  bool all_posted = true;
  for (int r = 0; r < size(); ++r) all_posted &= descriptor(r).posts != 0;
  if (all_posted) return planned;
  bool all_reachable = true;
  bool all_readable = true;
  for (int r = 0; r < size(); ++r) {
    const Descriptor& d = descriptor(r);
    all_reachable &= d.in_offset != kPrivate && d.out_offset != kPrivate;
    all_readable &= d.unreadable == 0;
  }
  CallShape shape = shape_of(call, all_reachable);
  shape.pages &= all_readable;
  shape.posts = false;  // the call is on its way
  return selector_.choose(shape, call.order);
}

double ShmEngine::divisor_of_others() const {
  for (int r = 0; r < size(); ++r)
    if (const double divisor = descriptor(r).card.divisor; divisor != kDivisorOfOthers) return divisor;
  return kDivisorOfOthers;
}

const void* ShmEngine::in(int rank) const {
  const std::uint64_t offset = descriptor(rank).in_offset;
  return offset >= kAbsent ? nullptr : session_->arena().at(offset);
}

void* ShmEngine::out(int rank) const {
  const std::uint64_t offset = descriptor(rank).out_offset;
  return offset >= kAbsent ? nullptr : session_->arena().at(offset);
}

const void* ShmEngine::posted(int rank) const { return meeting_.seat(rank).eager[round_ % 2]; }

}  // namespace lockstep
