// What ranks that share memory offer an algorithm beside messages, or instead of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "lockstep/comm/memory.h"

namespace lockstep {

struct Call;

// Inputs up to this may be posted with the call itself (Reach::posted).
inline constexpr std::size_t kEagerBytes = std::size_t{256} << 10;
// One window (Reach::window): small enough to stay in cache.
inline constexpr std::size_t kWindowBytes = std::size_t{128} << 10;

// The buffers of the call that is running, windows for those that peers can't reach, and a barrier. Pointers
// are valid during the call.
class Reach {
 public:
  virtual ~Reach() = default;
  virtual const void* in(int rank) const = 0;      // rank's input, null when it is private
  virtual void* out(int rank) const = 0;           // rank's output, null when it is private
  virtual const void* posted(int rank) const = 0;  // rank's input as it came with the call (Needs::posts)
  virtual std::size_t windows() const = 0;         // of each rank, of kWindowBytes; at least three
  virtual std::byte* window(int rank, std::size_t slot) const = 0;
  virtual void barrier() = 0;
  // Copies what lies `at` bytes into rank's input, or output, to `to`, though it be private (Needs::pages).
  // Throws what the group failed with where rank is gone.
  virtual void read_in(int rank, std::size_t at, std::span<std::byte> to) = 0;
  virtual void read_out(int rank, std::size_t at, std::span<std::byte> to) = 0;
};

// How an engine whose ranks share memory lends it to one that is composed with it: all ranks meet and compare
// their calls as for any collective, then `task` works on everybody's buffers. It gets the call with the
// divisor that these ranks know. Waits inside `task` may take `grace` longer than the call. It writes to its
// own rank's buffers alone: where it fails on one rank, that one does not wait for the others to leave
// theirs.
class Commons {
 public:
  using Task = std::function<void(Reach& reach, const Call& told)>;
  virtual ~Commons() = default;
  virtual void with_peers(const Call& call, std::chrono::milliseconds grace, const Task& task) = 0;
  // A block for all ranks (Group::allocate_shared): one of them makes it and tells the others its place, then
  // each, the maker too, takes hold of it, once. Local.
  virtual std::uint64_t share(std::size_t bytes) = 0;
  virtual CommMemory hold(std::uint64_t place, std::size_t bytes) = 0;
};

// The same on a device, for ranks that are on one: they map what one of them has there. Errors are
// SystemErrors.
class DeviceCommons {
 public:
  virtual ~DeviceCommons() = default;
  // What tells the device itself from all others, whichever process asks, by whatever index.
  virtual std::string identity(Device device) = 0;
  // A zeroed block for all ranks: one of them makes it and tells the others how it is found, then each, the
  // maker too, takes hold of it, once. Local.
  virtual std::string share(std::size_t bytes, Device device) = 0;
  virtual CommMemory hold(const std::string& found, std::size_t bytes, Device device) = 0;
};

}  // namespace lockstep
