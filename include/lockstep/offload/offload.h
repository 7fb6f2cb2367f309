// State that has no room in memory, in a file on a local disk.
//
//   lockstep::AdamW optimizer(zero1, {.lr = 5e-4, .offload = {.folder = "/scratch"}});
//
// An optimizer's state (moments, and f32 master weights) then lies in one file of this process, without a
// name: nothing is left behind, however the process ends. A step goes over it in pages: while one is updated
// the next ones are read and those before it written, by io_uring where the kernel has it and by threads
// where not, past the page cache where the file system lets it. What that takes of memory is
// `staging_bytes`, whatever the size of the state. The bits are those of state in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// What is on its way at the same time: one page that is updated, others that are read and written.
inline constexpr std::size_t kStagedPages = 6;

// How the file is read and written. `automatic`: io_uring where the kernel lets this process have it.
enum class OffloadIo : std::uint8_t { automatic, io_uring, threads };

// Where the file's bytes go: past the page cache, or through it, so that rates are not the disk's alone; or
// nowhere, on a file system that is memory (tmpfs), which saves none.
enum class OffloadPath : std::uint8_t { direct, page_cache, memory };

struct Offload {
  std::filesystem::path folder = {};  // on a local disk, there already; empty: state stays in memory
  // Of parameters on a GPU: state is in the host's memory, and updated there by the processor. With a folder
  // it is on disk, and updated by the processor, too.
  bool host = false;
  // Memory for pages on their way: 384 KiB or more. More than 24 MiB makes nothing faster.
  std::size_t staging_bytes = std::size_t{24} << 20;
  OffloadIo io = OffloadIo::automatic;

  explicit operator bool() const { return host || !folder.empty(); }
};

// What this process keeps on disk, and how fast that is.
struct OffloadFigures {
  std::filesystem::path folder;
  std::uint64_t bytes = 0;        // on disk; without a folder in the host's memory
  std::size_t staging_bytes = 0;  // memory in their place
  std::size_t host_bytes = 0;     // of parameters on a GPU: what the host holds beside the state
  std::string io;                 // "io_uring" or "threads"
  OffloadPath path = OffloadPath::page_cache;
  // Measured on the file when it was made, bytes a second: alone, and both at once in each direction.
  double read_rate = 0;
  double write_rate = 0;
  double both_rate = 0;
  // Of a step, for its transfers, were nothing computed beside them. Of parameters on a GPU: for transfers
  // and the update.
  double predicted_ms = 0;
  // That steps waited for transfers, the median of the last 1000; nullopt: there was no step. Of parameters
  // on a GPU: from when gradients were there until the updated parameters were.
  std::optional<double> measured_ms = {};
};

// The disk refused or lost something. What it had is gone: a rank that has got this can't go on.
class OffloadError : public SystemError {
 public:
  using SystemError::SystemError;
};

}  // namespace lockstep
