// The sum of a residual stream and a branch, and its layer norm, in one pass; rows of up to 1024 values.
//
//   sum = x + branch + branch_bias      normed = weight · (sum - mean) · inverse + bias
//
// With x of E bytes forward reads 2 E and writes 2 E (E and E without a branch); backward reads 3 E (both
// gradients and the sum) and writes E, the gradient of x and of the branch alike, and sums the columns for
// weight, bias and branch_bias on the way. A warp takes a row and keeps it in registers; column sums are of
// fixed blocks of rows.
#pragma once

#include <cuda_runtime_api.h>

#include "models/cuda/element.h"

namespace lockstep::gpu {

inline constexpr std::int64_t kMostNormColumns = 1024;

struct AddNormForward {
  Element element = Element::f32;
  Rows shape;
  const void* x = nullptr;
  const void* branch = nullptr;       // null: the norm alone, and no sum is written
  const void* branch_bias = nullptr;  // may be null
  const void* weight = nullptr;
  const void* bias = nullptr;
  double epsilon = 0;
  void* sum = nullptr;
  void* normed = nullptr;
  float* mean = nullptr;     // a number a row
  float* inverse = nullptr;  // 1 / √(variance + ε), a number a row
};
void add_norm_forward(const AddNormForward& forward, cudaStream_t stream);

// How many blocks of rows have column sums of their own.
std::int64_t add_norm_chunks(std::int64_t rows);

struct AddNormBackward {
  Element element = Element::f32;
  Rows shape;
  const void* d_sum = nullptr;  // what came for the sum itself; may be null
  const void* d_normed = nullptr;
  const void* sum = nullptr;  // x where there was no branch
  const void* weight = nullptr;
  const float* mean = nullptr;
  const float* inverse = nullptr;
  void* dx = nullptr;
  void* d_weight = nullptr;
  void* d_bias = nullptr;
  void* d_branch_bias = nullptr;  // may be null
  float* partial = nullptr;       // workspace: 3 × chunks × columns
};
void add_norm_backward(const AddNormBackward& backward, cudaStream_t stream);

}  // namespace lockstep::gpu
