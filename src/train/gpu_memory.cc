#include "train/gpu_memory.h"

#include "lockstep/base/error.h"

#ifdef LOCKSTEP_HAS_TORCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <torch/types.h>

#include <algorithm>

#include "comm/cuda/check.h"
#include "comm/cuda/runtime.h"

namespace lockstep {

int gpu_count() { return cuda::device_count(); }

std::string gpu_name(int index) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", index);
  return static_cast<const char*>(properties.name);
}

namespace {

// libtorch's allocator knows of no device before the first tensor on one.
void make_allocator(int index) {
  [[maybe_unused]] static const bool there =
      torch::empty({0}, torch::TensorOptions().device(torch::kCUDA, static_cast<c10::DeviceIndex>(index)))
          .is_cuda();
}

}  // namespace

GpuMemory gpu_memory(int index) {
  make_allocator(index);
  constexpr std::size_t kAll = 0;  // libtorch's StatType::AGGREGATE
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  GpuMemory memory{.peak_bytes = stats.allocated_bytes[kAll].peak,
                   .now_bytes = stats.allocated_bytes[kAll].current,
                   .comm_bytes = static_cast<std::int64_t>(cuda::CudaRuntime::get().taken_bytes(index)),
                   .held_bytes = stats.reserved_bytes[kAll].peak};
  const cuda::OnDevice on(index);
  std::size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", index);
  memory.free_bytes = static_cast<std::int64_t>(free);
  memory.total_bytes = static_cast<std::int64_t>(total);
  return memory;
}

void limit_gpu_memory(int index, double bytes) {
  const GpuMemory now = gpu_memory(index);
  const double left = std::max(0.0, bytes - static_cast<double>(now.comm_bytes));
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      std::min(1.0, left / static_cast<double>(now.total_bytes)), static_cast<c10::DeviceIndex>(index));
}

}  // namespace lockstep
#else
namespace lockstep {

int gpu_count() { return 0; }
std::string gpu_name(int) { throw UsageError("this build has no CUDA"); }
GpuMemory gpu_memory(int) { throw UsageError("this build has no CUDA"); }
void limit_gpu_memory(int, double) { throw UsageError("this build has no CUDA"); }

}  // namespace lockstep
#endif
