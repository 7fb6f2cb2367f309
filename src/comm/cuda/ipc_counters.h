// How streams of the engine ipc's ranks wait for each other: by numbers in host memory that all ranks of a
// group share and all their GPUs reach. A rank has a page of them, which it alone writes: for each of the
// last kRounds rounds one that its stream sets when its buffers are ready, and one when its part is done.
//
// A round's numbers lie in the place of the one kRounds before it, and count up. That one has to be over on
// this rank's streams before they are written again: then they are never written in another order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "lockstep/comm/device.h"
#include "lockstep/comm/memory.h"

namespace lockstep::cuda {

class IpcCounters {
 public:
  static constexpr std::uint64_t kRounds = 256;
  static constexpr std::size_t kPageBytes = 4096;
  static std::size_t bytes_for(int ranks) { return static_cast<std::size_t>(ranks) * kPageBytes; }

  // `memory`: of bytes_for(ranks), zero, which all ranks hold. Throws DeviceError where CUDA does not take
  // it.
  IpcCounters(CommMemory memory, int rank, int ranks);
  ~IpcCounters();
  IpcCounters(const IpcCounters&) = delete;
  IpcCounters& operator=(const IpcCounters&) = delete;

  enum class Step { ready, done };
  // This rank comes to `step` of `round`, counted from 1, where `stream` has done what it holds.
  void write(Step step, std::uint64_t round, const DeviceStream& stream);
  // `stream` waits until all others have, and where `own` is set this rank, too.
  void wait(Step step, std::uint64_t round, const DeviceStream& stream, bool own);

  // Nobody waits for `rank` any more. By the host; from any thread. What a GPU still writes for a process
  // that was killed a moment ago may undo it: to be said again while somebody waits.
  void release(int rank) noexcept;

 private:
  struct Page;
  Page& page(int rank) const;
  std::uintptr_t address(int rank, Step step, std::uint64_t round, int index);

  CommMemory memory_;
  int rank_;
  int ranks_;
  std::shared_ptr<void> registered_;
  std::map<int, std::uintptr_t> seen_by_;  // where `memory_` is for a GPU, by index
};

}  // namespace lockstep::cuda
