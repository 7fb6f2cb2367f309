// Point to point between the ranks of a group, over shared memory, TCP, MPI or Gloo: all that an algorithm
// sees of its peers, unless it works on memory that they share (comm/call/reach.h).
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "comm/kernel/reduce.h"

namespace lockstep {

// What to do with arriving bytes. The folds combine elements (comm/kernel/reduce.h); `before` means
// that the arriving ones come from lower ranks and stand on the left.
enum class Arrival { store, fold_before, fold_after };

struct Outgoing {
  int peer;
  std::span<const std::byte> bytes;
};

struct Incoming {
  int peer;
  std::span<std::byte> bytes;
  Arrival arrival = Arrival::store;

  // Does that with `count` bytes that have come, whole elements, for its own from `at` on.
  void take(std::size_t at, const std::byte* from, std::size_t count,
            const kernel::Reduction& reduction) const {
    std::byte* const to = bytes.data() + at;
    if (arrival == Arrival::store) {
      if (count != 0) std::memcpy(to, from, count);
      return;
    }
    const bool before = arrival == Arrival::fold_before;
    kernel::combine(to, before ? from : to, before ? to : from, count / size_of(reduction.dtype), reduction);
  }
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Moves everything, in any interleaving, and returns when all is sent (buffers reusable) and all has
  // arrived. Messages between two ranks keep their order and match one to one; at most one per peer and
  // direction in a call. Folds use `reduction`. Throws typed errors.
  virtual void exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                        const kernel::Reduction& reduction) = 0;
};

}  // namespace lockstep
