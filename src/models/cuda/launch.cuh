// Starting a kernel, and what went wrong with it by name.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace lockstep::gpu {

inline void check_launch(const char* kernel) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("CUDA: ") + kernel + ": " + cudaGetErrorString(error));
}

// Where one kernel goes: `threads` a block, `stream` in order.
struct Launch {
  const char* name;
  dim3 blocks;
  int threads;
  cudaStream_t stream;
};

#ifdef __CUDACC__
template <class... Parameters, class... Arguments>
void launch(const Launch& to, void (*kernel)(Parameters...), const Arguments&... arguments) {
  kernel<<<to.blocks, to.threads, 0, to.stream>>>(static_cast<Parameters>(arguments)...);
  check_launch(to.name);
}
#else
// tests/cuda/emulated has one that runs the same kernels on the processor.
template <class... Parameters, class... Arguments>
void launch(const Launch& to, void (*kernel)(Parameters...), const Arguments&... arguments);
#endif

}  // namespace lockstep::gpu
