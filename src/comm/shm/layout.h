// What lies in a group's control block. Plain memory in the arena, zero when fresh; every field that two
// ranks may touch at once is atomic, every other is handed over by a barrier.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/agree/call_card.h"
#include "comm/call/failure_record.h"
#include "comm/call/rank_mask.h"
#include "comm/call/reach.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep::shm {

inline constexpr std::size_t kLine = 64;
inline constexpr std::uint64_t kPrivate = ~std::uint64_t{0};     // an offset that says "not in the arena"
inline constexpr std::uint64_t kAbsent = ~std::uint64_t{0} - 1;  // "this rank has no such buffer"

// Windows of a rank, for private memory.
inline constexpr std::size_t kWindows = 3;
// One direction between two ranks.
inline constexpr std::size_t kRingBytes = std::size_t{256} << 10;

// What a rank says when it enters a collective: what it calls, and where its buffers are. What small calls
// need of it is in its first line of cache: each line that peers read is fetched from the owner's core.
struct alignas(kLine) Descriptor {
  CallCard card;
  std::uint16_t posts;                     // 1 when the input lies in the eager slot
  std::uint16_t unreadable;                // 1 when the kernel can't read the private buffers for others
  alignas(kLine) std::uint64_t in_offset;  // in the arena, or kPrivate, or kAbsent
  std::uint64_t out_offset;                // likewise
  std::uint64_t in_address;                // in the rank's own process
  std::uint64_t out_address;
  std::int64_t payload[2];  // split's
};

enum class SeatState : std::uint32_t { empty = 0, joined = 1, left = 2, dead = 3 };

// One rank's place. The owner writes it, peers read.
struct alignas(4096) Seat {
  // Rings when a channel's bytes moved while the owner slept.
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> asleep;

  alignas(kLine) std::atomic<std::uint32_t> state;  // SeatState
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> phase;     // barriers this rank has come to
  std::atomic<std::uint64_t> sequence;  // of the call it is in, or was in last
  // 1: from before the barrier behind which it may write into peers' buffers until it does no more.
  std::atomic<std::uint32_t> at_work;
  // The owner's notice (comm/agree/notices.h), once a wait has outlasted its first sleep.
  std::atomic<std::int64_t> waiting_ns;                    // when it was last renewed; 0: it does not wait
  std::atomic<std::uint32_t> waits_outside;                // 1: for somebody who is not in this group
  std::atomic<std::uint64_t> waits_for[RankMask::kWords];  // a RankMask of this group's

  Descriptor descriptor[2];  // by the parity of the round
  FailureRecord failure;     // complete before Control::failed points to it
  alignas(kLine) std::byte flight[FlightRing::kBytes];
  alignas(4096) std::byte eager[2][kEagerBytes];
  std::byte window[kWindows][kWindowBytes];
};

// One direction between two ranks: bytes written and read since the beginning, and the ring itself.
struct alignas(4096) Ring {
  alignas(kLine) std::atomic<std::uint64_t> written;
  alignas(kLine) std::atomic<std::uint64_t> read;
  alignas(4096) std::byte data[kRingBytes];
};

// In Control::phase, set after `failed` by the first rank to give up on a barrier: no barrier completes any
// more. So a barrier lets all pass or none, and what it decides (a split) is decided for everybody.
inline constexpr std::uint32_t kBroken = std::uint32_t{1} << 31;

// Aligned as what follows it: seats and rings begin at pages.
struct alignas(4096) Control {
  std::atomic<std::uint32_t> failed;  // 0, or 1 + the rank whose seat holds the first failure
  std::atomic<std::uint32_t> left;    // ranks that have let go of the block
  std::uint32_t members;              // written by the maker of the block; 0 for the world's, never freed

  alignas(kLine) std::atomic<std::uint64_t> arrivals;  // at barriers, since the beginning
  alignas(kLine) std::atomic<std::uint32_t> phase;     // barriers completed, and kBroken; sleepers wait on it
  std::atomic<std::uint32_t> sleepers;

  // | Control | Seat × n | Ring × n × n for collectives | Ring × n × n for send and recv |
  Seat& seat(int rank) { return reinterpret_cast<Seat*>(this + 1)[rank]; }
  Ring& ring(int n, int from, int to, int kind) {
    auto* const rings = reinterpret_cast<Ring*>(&seat(n));
    return rings[(static_cast<std::size_t>(kind) * n + from) * n + to];
  }
  static std::size_t bytes(int n) {
    const auto count = static_cast<std::size_t>(n);
    return sizeof(Control) + count * sizeof(Seat) + 2 * count * count * sizeof(Ring);
  }
};

static_assert(sizeof(Control) % alignof(Seat) == 0 && sizeof(Seat) % alignof(Ring) == 0);

}  // namespace lockstep::shm
