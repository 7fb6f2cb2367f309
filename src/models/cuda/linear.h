// What stands around matrix products: GELU, and gradients of biases, which are sums of columns.
#pragma once

#include <cuda_runtime_api.h>

#include "models/cuda/column_tiles.h"

namespace lockstep::gpu {

// y = GELU(x), x · Φ(x) with the normal distribution's Φ. Reads E, writes E.
void gelu_forward(Element element, const ColumnTiles& tiles, const void* x, void* y, cudaStream_t stream);

// dx = dy · GELU'(x), and the sums of its columns, d_bias, of the same type. Reads 2 E, writes E.
// `partial`, here and below: chunks × columns floats of workspace.
struct GeluBackward {
  Element element = Element::f32;
  const void* dy = nullptr;
  const void* x = nullptr;
  void* dx = nullptr;
  void* d_bias = nullptr;
  float* partial = nullptr;
};
void gelu_backward(const GeluBackward& backward, const ColumnTiles& tiles, cudaStream_t stream);

// Sums of x's columns, of its type. Reads E.
void column_sums(Element element, const ColumnTiles& tiles, const void* x, void* sums, float* partial,
                 cudaStream_t stream);

// Gradients of queries, keys and values, each rows × heads × depth, woven into one of rows × heads × 3 ×
// depth, and the sums of its columns. `tiles` are of the latter; depth is a multiple of the vector's width.
// Reads E, writes E.
struct WeaveHeads {
  Element element = Element::f32;
  std::int64_t depth = 0;
  const void* parts[3] = {};
  void* woven = nullptr;
  void* sums = nullptr;
  float* partial = nullptr;
};
void weave_heads(const WeaveHeads& weave, const ColumnTiles& tiles, cudaStream_t stream);

}  // namespace lockstep::gpu
