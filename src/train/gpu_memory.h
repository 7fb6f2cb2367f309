// What libtorch and CUDA say of GPUs. Without CUDA in the build there are none, and asking of one is an
// error.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

int gpu_count();
std::string gpu_name(int index);  // "NVIDIA H200"

struct GpuMemory {
  std::int64_t peak_bytes = 0;   // of tensors at a time, so far
  std::int64_t now_bytes = 0;    // of tensors
  std::int64_t comm_bytes = 0;   // of comm memory, which is not libtorch's
  std::int64_t held_bytes = 0;   // by libtorch, for tensors to come too; the most so far
  std::int64_t free_bytes = 0;   // by the driver, now
  std::int64_t total_bytes = 0;  // the GPU's
};
GpuMemory gpu_memory(int index);

// From now on libtorch takes no more there than that, less what comm memory has: beyond it is out of memory.
void limit_gpu_memory(int index, double bytes);

}  // namespace lockstep
