// ResNet's pooling: the largest of 3 × 3 at every second place, one place of border, channels-last.
//
// Forward reads x about once and writes y and a byte an element that says which of the nine it was; backward
// reads dy and those bytes and writes dx, each place adding what its up to four windows give it, in one
// order: no atomics.
#pragma once

#include <cuda_runtime_api.h>

#include "models/cuda/element.h"

namespace lockstep::gpu {

struct PoolShape {
  std::int64_t images = 0, height = 0, width = 0,
               channels = 0;  // of x; channels a multiple of the vector's width
  __host__ __device__ std::int64_t out_height() const { return (height - 1) / 2 + 1; }
  __host__ __device__ std::int64_t out_width() const { return (width - 1) / 2 + 1; }
};

void max_pool_forward(Element element, const PoolShape& shape, const void* x, void* y, std::uint8_t* chosen,
                      cudaStream_t stream);
// `dy_more` is added to dy; may be null.
struct MaxPoolBackward {
  const void* dy = nullptr;
  const void* dy_more = nullptr;
  const std::uint8_t* chosen = nullptr;
  void* dx = nullptr;
};
void max_pool_backward(Element element, const PoolShape& shape, const MaxPoolBackward& backward,
                       cudaStream_t stream);

}  // namespace lockstep::gpu
