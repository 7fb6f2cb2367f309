// The flight recorder: the last operations of one rank, readable by its peers.
//
// The ring lives in plain memory of its owner, usually a mapping that all processes of a group share, so
// that a survivor can read what a dead or stopped peer was doing. All-zero memory is an empty ring.
//
//   FlightRing ring(memory);                                   // this rank's own part of the mapping
//   ring.begin(17, call, now_ns());                            // called; its peers may not have come yet
//   ring.running("ring");                                      // an algorithm has started to move data
//   ring.end(FlightState::done, now_ns());
//   for (const FlightEntry& e : read_flight_ring(peer_memory)) // any process, any time
//     …
//
// One thread writes a ring at a time; any number of threads and processes read it meanwhile. Nobody
// locks, nobody waits, and a writer that dies at any instruction leaves a ring that can be read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep {

// waiting: called, no data has moved. running: an algorithm is at work. done, failed: over.
enum class FlightState : std::uint8_t { waiting, running, done, failed };

const char* to_string(FlightState state);  // "waiting", "running", "done", "failed"

// What was called, in fixed size: filling one allocates nothing. Leave out what the operation has not:
// a barrier has no dtype, a broadcast no op; describe() prints what is there.
struct FlightCall {
  char what[16] = {};                         // "all_reduce"; zero-padded, all 16 may be used
  std::optional<DType> dtype = std::nullopt;  // none: no elements either, as for barrier
  std::optional<ReduceOp> op = std::nullopt;  // none: nothing is reduced
  std::int32_t root = -1;                     // or the peer of send and recv; -1: none
  std::uint64_t count = 0;                    // elements

  // A call with its name set; longer names are cut.
  static constexpr FlightCall named(std::string_view name) {
    FlightCall call;
    for (std::size_t i = 0; i < name.size() && i < sizeof(call.what); ++i) call.what[i] = name[i];
    return call;
  }
};

// "f32 × 1024, sum", "f32 × 4, root 0", "f32 × 4, to 1" for send, "" for barrier.
std::string describe(const FlightCall& call);

// One operation as a reader sees it.
struct FlightEntry {
  std::uint64_t sequence = 0;  // of the group, counted from 1; 0: point to point, not counted
  std::string what;            // "all_reduce"
  std::string detail;          // describe(call)
  std::string algorithm;       // empty until running
  FlightState state = FlightState::waiting;
  std::int64_t begin_ns = 0;  // of the steady clock, as now_ns() gives it
  std::int64_t end_ns = 0;    // 0 until done or failed
  bool operator==(const FlightEntry&) const = default;
};

// A slot of the ring, all atomic so that reading while it is written is defined.
//
// `stamp` is 2 n when the slot holds the n-th operation of the ring (counted from 1), 2 n + 1 while
// begin() fills it in, 0 before its first use. A reader that sees an odd stamp, or another stamp after
// than before, skips the slot. running() and end() leave the stamp alone: each publishes with its last
// store, one word, so that a rank killed between two of their stores loses nothing of the entry.
// Fields are stored with release and loaded with acquire order (plain moves on x86): whoever sees a
// field of operation n also sees that the stamp has left operation n - kEntries.
struct alignas(64) FlightSlot {
  using Word = std::atomic<std::uint64_t>;
  Word stamp;
  Word sequence;
  Word what[2];  // 16 characters
  Word count;
  Word kind;  // bits 0-7 dtype, 8-15 op (0xff: none), 16-23 state, 32-63 root
  Word begin_ns;
  Word end_ns;
  Word algorithm[3];  // 24 characters; the first word is stored last
};
static_assert(sizeof(FlightSlot) == 128 && FlightSlot::Word::is_always_lock_free);

// The writer's end of a ring.
class FlightRing {
 public:
  static constexpr std::size_t kEntries = 64;
  static constexpr std::size_t kBytes = kEntries * sizeof(FlightSlot);  // 8 KiB
  static constexpr std::size_t kAlignment = alignof(FlightSlot);
  static constexpr std::size_t kAlgorithmChars = 24;

  // Writes to the first kBytes of `memory`, which must outlive the ring. Continues what is recorded
  // there. Throws UsageError when it is too small or not aligned to kAlignment.
  explicit FlightRing(std::span<std::byte> memory);

  // A new operation, waiting. The oldest one is forgotten. Of two operations that overlap in time only
  // the one begun last can be told to run or to end.
  void begin(std::uint64_t sequence, const FlightCall& call, std::int64_t begin_ns) {
    ++ordinal_;
    FlightSlot& slot = current();
    std::uint64_t what[2];
    std::memcpy(what, call.what, sizeof(what));
    slot.stamp.store(2 * ordinal_ + 1, std::memory_order_relaxed);
    put(slot.sequence, sequence);
    put(slot.what[0], what[0]);
    put(slot.what[1], what[1]);
    put(slot.count, call.count);
    put(slot.kind, pack(call));
    put(slot.begin_ns, static_cast<std::uint64_t>(begin_ns));
    put(slot.end_ns, 0);
    put(slot.algorithm[0], 0);
    put(slot.stamp, 2 * ordinal_);
  }

  // The operation begun last has started to move data, by `algorithm` (cut at 24 characters). An
  // algorithm that runs others inside may leave them unsaid: only the first name is kept.
  void running(std::string_view algorithm) {
    FlightSlot& slot = current();
    if (slot.algorithm[0].load(std::memory_order_relaxed) == 0) {
      std::uint64_t name[3] = {};
      std::memcpy(name, algorithm.data(), std::min(algorithm.size(), sizeof(name)));
      put(slot.algorithm[2], name[2]);
      put(slot.algorithm[1], name[1]);
      put(slot.algorithm[0], name[0]);
    }
    put_state(slot, FlightState::running);
  }

  // The operation begun last is over: done or failed.
  void end(FlightState outcome, std::int64_t end_ns) {
    FlightSlot& slot = current();
    put(slot.end_ns, static_cast<std::uint64_t>(end_ns));
    put_state(slot, outcome);
  }

  // Oldest first, at most kEntries.
  std::vector<FlightEntry> last() const;

 private:
  static void put(FlightSlot::Word& word, std::uint64_t value) {
    word.store(value, std::memory_order_release);
  }
  static void put_state(FlightSlot& slot, FlightState state) {
    const std::uint64_t kind = slot.kind.load(std::memory_order_relaxed) & ~(std::uint64_t{0xff} << 16);
    put(slot.kind, kind | static_cast<std::uint64_t>(state) << 16);
  }
  static std::uint64_t pack(const FlightCall& call) {  // state: waiting
    const std::uint64_t dtype = call.dtype ? static_cast<std::uint8_t>(*call.dtype) : 0xff;
    const std::uint64_t op = call.op ? static_cast<std::uint8_t>(*call.op) : 0xff;
    return dtype | op << 8 | std::uint64_t{static_cast<std::uint32_t>(call.root)} << 32;
  }
  // Before the first begin() this is a slot whose stamp is 0, which no reader looks at.
  FlightSlot& current() { return slots_[ordinal_ % kEntries]; }

  FlightSlot* slots_;
  std::uint64_t ordinal_ = 0;  // operations begun so far
};

// The operations recorded in a ring of any process, oldest first; a slot that changes under the reader's
// eyes is left out. Bytes that are no ring give odd entries, never a crash. Throws UsageError as the
// constructor above does.
std::vector<FlightEntry> read_flight_ring(std::span<const std::byte> memory);

}  // namespace lockstep
