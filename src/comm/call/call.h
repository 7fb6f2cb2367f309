// One collective call, after validation: what engines and algorithms execute.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/comm/buffer.h"
#include "lockstep/comm/collective.h"
#include "lockstep/comm/device.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/work.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

class Stall;

// Longer timeouts are cut to this: as nanoseconds they would not fit the clock.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

// More are no buffer's: whatever is multiplied by a type's size or a number of ranks stays below 2^63.
inline constexpr std::size_t kMostElements = std::size_t{1} << 50;

bool reduces(Collective what);     // all_reduce, reduce_scatter, reduce
bool is_message(Collective what);  // send, recv: between two ranks, and not numbered
// Of one rank, in a call of so many `bytes` (Call::bytes).
std::size_t input_bytes(Collective what, std::size_t bytes, int ranks);

struct Call {
  Collective what = Collective::barrier;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  // elements a rank contributes to one peer
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  double divisor = 0;  // of avg; 0: the number of ranks
  int root = -1;       // or the peer of send and recv
  Device device = {};
  DeviceStream stream = {};  // where a call on a device is put
  // What the call itself waits for, where that is less than what `stream` holds: its buffers are what they
  // should be from there on, unless a call before it on this group works on the same memory. Empty: it is
  // not known.
  DeviceEvent start = {};
  DeviceEvent* end = nullptr;  // gets where it ends, from an engine that has such an event on `stream`
  Order order = Order::canonical;
  std::string algorithm;  // empty: choose
  std::chrono::milliseconds timeout = {};
  std::string purpose;         // in words, for messages; may be empty
  std::uint64_t sequence = 0;  // of this group, counted from 1 by the front door

  // A divisor that nobody said is 1.
  double divisor_among(int ranks) const {
    return divisor == 0 ? ranks : divisor == kDivisorOfOthers ? 1 : divisor;
  }

  // `count` is the smaller buffer's: all_reduce, broadcast, reduce: the whole buffer; reduce_scatter:
  // out; all_gather, gather: in; scatter: out; all_to_all: one slice.
  std::size_t bytes() const { return count * size_of(dtype); }
  std::string describe() const;  // "all_reduce(f32 × 1024, sum)"
  // ", bucket 2 of 3 (…)": what follows where messages say in which call they are; empty without a purpose.
  std::string for_what() const { return shown().purpose.empty() ? "" : ", " + shown().purpose; }
  std::string where(
      const std::string& group) const;  // "all_reduce(f32 × 4, sum), operation 3 of group world"

  // Data has started to move, by `algorithm`.
  void running(std::string_view name) const {
    if (flight != nullptr) flight->running(name);
    if (timing != nullptr) {
      timing->running_ns = now_ns();
      timing->algorithm = name;
    }
  }

  // The call that the user made, when this is a part of it: what errors speak of and ranks compare.
  const Call* whole = nullptr;
  const Call& shown() const { return whole == nullptr ? *this : *whole; }

  FlightRing* flight = nullptr;  // told which algorithm runs; null: nobody records
  WorkTiming* timing = nullptr;  // of an asynchronous call
  Stall* stall = nullptr;        // told of waits that last; null: nobody is
};

FlightCall flight_call(const Call& call);  // as the flight recorder keeps it

}  // namespace lockstep
