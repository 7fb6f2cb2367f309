// Point to point between the ranks of a group, over shared memory, TCP or MPI: all that an algorithm sees of
// its peers.
#pragma once

#include <cstddef>
#include <span>

#include "comm/kernel/reduce.h"

namespace lockstep {

// What to do with arriving bytes. The folds combine accumulators (comm/kernel/reduce.h); `before` means
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
};

// What a channel offers beside messages when all its ranks share memory: the buffers of the call that is
// running, windows for those that peers can't reach, and a barrier. Pointers are valid during the call.
class Reach {
 public:
  virtual ~Reach() = default;
  virtual const void* in(int rank) const = 0;     // rank's input, null when it is private
  virtual void* out(int rank) const = 0;          // rank's output, null when it is private
  virtual const void* eager(int rank) const = 0;  // rank's input as it was posted with the call, or null
  virtual std::size_t window_bytes() const = 0;
  virtual std::size_t windows() const = 0;  // of each rank; at least three
  virtual std::byte* window(int rank, std::size_t slot) const = 0;
  virtual void barrier() = 0;
  // Copies what lies `at` bytes into rank's input, or output, to `to`, though it be private. For algorithms
  // that say Algorithm::reads_pages. Throws what the group failed with where rank is gone.
  virtual void read_in(int rank, std::size_t at, std::span<std::byte> to) = 0;
  virtual void read_out(int rank, std::size_t at, std::span<std::byte> to) = 0;
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

  // Null when the ranks share no memory.
  virtual Reach* reach() { return nullptr; }
};

}  // namespace lockstep
