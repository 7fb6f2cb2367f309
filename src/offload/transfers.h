// Reads and writes of a scratch file that go on while whoever began them computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/offload/offload.h"
#include "offload/scratch_file.h"

namespace lockstep {

struct Transfer {
  enum class Way : bool { read, write };
  Way way = Way::read;
  std::uint64_t at = 0;
  std::span<std::byte> bytes = {};  // stays until it is through; aligned, in number too
  std::size_t tag = 0;              // the caller's name for it
};

enum class Wait : bool { no, yes };

// Used by one thread.
class Transfers {
 public:
  Transfers() = default;
  // Waits for what is under way.
  virtual ~Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // At most as many under way as make_transfers() was told. Throws OffloadError.
  virtual void begin(const Transfer& transfer) = 0;
  // The tag of one that is through, whole; nullopt: none is, or none is under way. Throws OffloadError for
  // one that failed, which is through then too.
  virtual std::optional<std::size_t> take(Wait wait) = 0;
  // Waits for what is under way, for the sake of its memory: what became of it is not told any more.
  virtual void abandon() noexcept = 0;
  virtual const char* name() const = 0;
};

// `file` outlives it. Throws OffloadError where io_uring is asked for and the kernel lets nobody have it.
std::unique_ptr<Transfers> make_transfers(const ScratchFile& file, std::size_t most, OffloadIo io);

// The two forms. By io_uring: null, with the reason in errno, where there is none or it does not read and
// write this file. By threads: throws OffloadError where not one can be started.
std::unique_ptr<Transfers> make_uring_transfers(const ScratchFile& file, std::size_t most);
std::unique_ptr<Transfers> make_thread_transfers(const ScratchFile& file, std::size_t most);

}  // namespace lockstep
