// One round of a call of the engine ipc: the elements [begin, end) of it, once all ranks have posted where
// theirs are.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/call/call.h"

namespace lockstep {

// A rank's buffers as this process reaches them, from element `begin` of the call on.
struct IpcView {
  std::byte* in = nullptr;   // null: it gives nothing
  std::size_t stride = 0;    // bytes from one slice of `in` to the next
  std::byte* out = nullptr;  // null: nobody writes there but itself
};

struct IpcRound {
  const Call& call;
  double divisor;  // that all know
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

// Puts this rank's part on the call's stream.
void put_round(const IpcRound& round);

}  // namespace lockstep
