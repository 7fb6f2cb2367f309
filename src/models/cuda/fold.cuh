// The second half of a sum over rows: partial[sum][chunk][column] added up over the chunks, in f64, in one
// order.
//
// A block takes 8 columns; each of 32 threads a column takes every 32nd chunk, then a tree. `Finish` is a
// struct:
//   void operator()(const double (&sums)[kSums], std::int64_t column) const      what comes of a column's
//   sums
#pragma once

#include "models/cuda/column_tiles.h"
#include "models/cuda/launch.cuh"

namespace lockstep::gpu {

inline constexpr int kFoldColumns = 8;
inline constexpr int kFoldThreads = 32 * kFoldColumns;

template <int kSums, class Finish>
__global__ void __launch_bounds__(kFoldThreads)
    fold_kernel(Finish finish, const float* partial, std::int64_t chunks, std::int64_t columns) {
  __shared__ double shared[kSums][kFoldThreads];
  const int lane = static_cast<int>(threadIdx.x) % kFoldColumns;
  const int first = static_cast<int>(threadIdx.x) / kFoldColumns;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kFoldColumns + lane;
  for (int s = 0; s < kSums; ++s) {
    double sum = 0;
    if (column < columns)
      for (std::int64_t chunk = first; chunk < chunks; chunk += 32)
        sum += static_cast<double>(partial[(s * chunks + chunk) * columns + column]);
    shared[s][threadIdx.x] = sum;
  }
  __syncthreads();
  for (int half = 16; half > 0; half /= 2) {
    if (first < half)
      for (int s = 0; s < kSums; ++s) shared[s][threadIdx.x] += shared[s][threadIdx.x + half * kFoldColumns];
    __syncthreads();
  }
  if (first == 0 && column < columns) {
    double sums[kSums];
    for (int s = 0; s < kSums; ++s) sums[s] = shared[s][threadIdx.x];
    finish(sums, column);
  }
}

template <int kSums, class Finish>
void fold(const char* name, const Finish& finish, const float* partial, std::int64_t chunks,
          std::int64_t columns, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((columns + kFoldColumns - 1) / kFoldColumns));
  launch({name, blocks, kFoldThreads, stream}, &fold_kernel<kSums, Finish>, finish, partial, chunks, columns);
}

}  // namespace lockstep::gpu
