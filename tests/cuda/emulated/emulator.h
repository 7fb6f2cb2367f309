// Runs kernels on the processor, so that their indices and sums are tested where there is no GPU. A kernel's
// file is compiled as C++ with this header before it (-include); its blocks then run one after the other, the
// threads of a block as fibers that take turns at every __syncthreads() and shuffle. It finds wrong indices,
// missing barriers that change a result, and sums in another order; not races between warps, nor what the
// card's compiler makes of it.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <functional>

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace lockstep::emulated {

struct Place {
  uint3 thread{};
  uint3 block{};
};
extern Place here;
extern dim3 block_size;
extern dim3 grid_size;

void sync_threads();
float shuffle_xor(float value, int lane_mask);
// Every thread of every block calls `body`.
void run_grid(dim3 blocks, int threads, const std::function<void()>& body);

}  // namespace lockstep::emulated

#define threadIdx (::lockstep::emulated::here.thread)
#define blockIdx (::lockstep::emulated::here.block)
#define blockDim (::lockstep::emulated::block_size)
#define gridDim (::lockstep::emulated::grid_size)
#define __syncthreads() ::lockstep::emulated::sync_threads()
#define __shfl_xor_sync(warp, value, lane_mask) ::lockstep::emulated::shuffle_xor(value, lane_mask)

#include "models/cuda/launch.cuh"

namespace lockstep::gpu {

template <class... Parameters, class... Arguments>
void launch(const Launch& to, void (*kernel)(Parameters...), const Arguments&... arguments) {
  emulated::run_grid(to.blocks, to.threads, [&] { kernel(static_cast<Parameters>(arguments)...); });
}

}  // namespace lockstep::gpu
