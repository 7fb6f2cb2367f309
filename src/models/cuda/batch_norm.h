// Batch norm of channels-last activations in training, with the sum and the ReLU that follow it in a ResNet.
//
// With x of E bytes, all in 16-byte accesses:
//   forward   statistics read E; y = act(scale · x + shift [+ residual]) reads E (2 E with a residual),
//   writes E
//             and, with a residual, a bit an element (E / 16 of 16-bit activations) that says where ReLU let
//             it pass
//   backward  sums read 2 E (dy and x; where ReLU stood follows from x), dx reads 2 E and writes E; with a
//   residual
//             the sums' pass reads its bits, adds a second dy where there is one, and writes the residual's
//             gradient, which the last pass then reads instead of dy: E more
// Statistics are f32 sums of x - x₀ (the channel's first value: no cancellation) over fixed chunks, added up
// in f64.
#pragma once

#include <cuda_runtime_api.h>

#include "models/cuda/column_tiles.h"

namespace lockstep::gpu {

enum class Activation : std::uint8_t { none, relu, add_relu };

// What forward keeps for backward, a float a channel each, one behind the other.
struct NormSaved {
  float* base = nullptr;
  std::int64_t channels = 0;

  static constexpr std::int64_t kArrays = 4;
  __host__ __device__ float* mean() const { return base; }
  __host__ __device__ float* inverse() const { return base + channels; }    // 1 / √(variance + ε)
  __host__ __device__ float* scale() const { return base + 2 * channels; }  // weight · inverse
  __host__ __device__ float* shift() const { return base + 3 * channels; }  // bias - mean · scale
};

struct NormRunning {
  float* mean = nullptr;  // both null: not tracked
  float* variance = nullptr;
  std::int64_t* batches = nullptr;  // null: not counted
  double momentum = 0;
};

struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;
  double epsilon = 0;
};

// Mean and variance of x, scale and shift into `saved`; running statistics move as torch::nn::BatchNorm2d's.
// `partial`: 2 × chunks × channels floats of workspace.
void batch_norm_statistics(Element element, const ColumnTiles& tiles, const void* x,
                           const NormWeights& weights, const NormRunning& running, NormSaved saved,
                           float* partial, cudaStream_t stream);

struct NormApply {
  Element element = Element::f32;
  Activation activation = Activation::none;
  const void* x = nullptr;
  const void* residual = nullptr;  // of add_relu
  void* y = nullptr;
  std::uint8_t* mask = nullptr;  // of add_relu, a byte for 16 bytes of y; null: no backward will come
};
void batch_norm_apply(const NormApply& apply, const ColumnTiles& tiles, NormSaved saved, cudaStream_t stream);

struct NormBackward {
  Element element = Element::f32;
  Activation activation = Activation::none;
  const void* dy = nullptr;
  const void* dy_more = nullptr;  // of add_relu, added to dy; may be null
  const void* x = nullptr;
  const std::uint8_t* mask = nullptr;  // of add_relu
  void* d_residual = nullptr;          // of add_relu: dy behind ReLU
  void* dx = nullptr;
  float* d_weight = nullptr;
  float* d_bias = nullptr;
  float* coefficients = nullptr;  // workspace: 2 × channels
  float* partial = nullptr;       // workspace: 2 × chunks × channels
};
void batch_norm_backward(const NormBackward& backward, const ColumnTiles& tiles, NormSaved saved,
                         cudaStream_t stream);

}  // namespace lockstep::gpu
