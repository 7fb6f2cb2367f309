// One round of a call of the engine ipc: the elements [begin, end) of it, once all ranks have posted where
// theirs are.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "comm/call/engine.h"
#include "comm/cuda/call_order.h"

namespace lockstep {

// A rank's buffers as this process reaches them, from element `begin` of the call on.
struct IpcView {
  std::byte* in = nullptr;   // null: it gives nothing
  std::size_t stride = 0;    // bytes from one slice of `in` to the next
  std::byte* out = nullptr;  // null: nobody writes there but itself
};

struct IpcRound {
  const Call& call;
  DeviceStream stream;  // where it is put
  double divisor;       // that all know
  int rank;
  std::size_t begin;
  std::size_t end;
  std::vector<IpcView> views;  // by rank

  std::size_t count() const { return end - begin; }
};

// Whether slices of the input go to several ranks.
bool gives_slices(Collective what);
// Whether peers read this rank's input.
bool gives_input(const Call& call, int rank);

// A part of the call on the carrier: what ranks compare is the call itself.
Call part_of(const Call& call);

// Everybody's `mine`, by rank: a meeting on the carrier, where who called something else is named.
void exchange_bytes(Engine& carrier, const Call& call, const void* mine, void* all, std::size_t bytes);
template <class T>
std::vector<T> exchange(Engine& carrier, const Call& call, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(carrier.size()));
  exchange_bytes(carrier, call, &mine, all.data(), sizeof(T));
  return all;
}

// Where the call's element i lies in one of its buffers.
inline std::byte* element(void* buffer, const Call& call, std::size_t i) {
  return static_cast<std::byte*>(buffer) + i * size_of(call.dtype);
}
inline const std::byte* element(const void* buffer, const Call& call, std::size_t i) {
  return static_cast<const std::byte*>(buffer) + i * size_of(call.dtype);
}

// How many elements go at once: by the call alone, so that all ranks' rounds are the same.
std::size_t at_once(const Call& call, int ranks);

// Whether a call is put behind what its memory waits for (CallOrder), not behind all that its stream holds.
// So go those of which training has many in flight, where nothing is copied for them.
bool goes_by_memory(const Call& call, int ranks);
// What this rank's buffers take, in and out.
std::array<cuda::CallOrder::Range, 2> memory_of(const Call& call, int ranks);

// Puts this rank's part on the round's stream.
void put_round(const IpcRound& round);
// A call of a group of one, on the call's stream.
void put_alone(const Call& call);

}  // namespace lockstep
