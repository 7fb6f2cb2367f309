// What a rank tells its peers when it enters a call of the engine ipc: where its buffers are, and which
// events order the work on them where counters don't. Plain bytes; it goes over the carrier.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace lockstep::cuda {

// Where a buffer's part lies that this call, or this round of it, is about. Slice s of it begins
// `s * stride` bytes behind the first.
struct IpcPlace {
  std::uint64_t block = 0;    // IpcBlock::id in the owner's process; 0: nobody is to touch such a buffer
  std::uint64_t address = 0;  // in the owner's process
  std::uint64_t offset = 0;   // in the block
  std::uint64_t stride = 0;
  cudaIpcMemHandle_t handle = {};
};

struct IpcEventPost {
  std::uint64_t id = 0;  // SharedEvent::id in the owner's process
  std::uint64_t event = 0;
  cudaIpcEventHandle_t handle = {};
};

inline constexpr int kRetiredBlocks = 8;

struct IpcPost {
  std::uint64_t process = 0;  // process_token()
  double divisor = 0;         // as the call has it
  std::int32_t device = 0;    // its index, in the owner's process
  std::int32_t staged = 0;    // 1: a part of its buffers goes through memory of the engine's, in rounds
  IpcEventPost ready;         // the owner's stream: the buffers hold what they should, and may be written
  IpcEventPost done;          // what the owner does to everybody's buffers is done
  IpcPlace in;
  IpcPlace out;
  std::uint64_t retired[kRetiredBlocks] = {};  // blocks that nobody needs any more: peers let go of them
};
static_assert(std::is_trivially_copyable_v<IpcPost>);

}  // namespace lockstep::cuda
