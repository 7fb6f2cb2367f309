// A row that a warp holds in registers: vector v of a lane has columns (32 v + lane) × width and on.
#pragma once

#include <type_traits>

#include "models/cuda/vector.cuh"

namespace lockstep::gpu {

inline constexpr int kWarp = 32;

// The same in all lanes.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
  return value;
}

template <class T, int kVectors>
struct WarpRow {
  float value[kVectors][kWidth<T>];

  __device__ static int column(int v) {
    return (v * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kWidth<T>;
  }
  // Zeros behind the row's end.
  __device__ void load(const T* row, int columns) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Vector<T> loaded{};
      if (column(v) < columns) loaded = load_vector(row, column(v));
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) value[v][i] = to_float(loaded.value[i]);
    }
  }
  __device__ void store(T* row, int columns) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= columns) continue;
      Vector<T> out;
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) out.value[i] = from_float<T>(value[v][i]);
      store_vector(row, column(v), out);
    }
  }
};

// Calls `call` with the number of vectors that a lane needs for `columns`, as a constant.
template <class T, class Call>
void with_vectors(std::int64_t columns, const Call& call) {
  const std::int64_t needed = (columns + kWarp * kWidth<T> - 1) / (kWarp * kWidth<T>);
  if (needed <= 1) return call(std::integral_constant<int, 1>{});
  if (needed <= 2) return call(std::integral_constant<int, 2>{});
  if (needed <= 3) return call(std::integral_constant<int, 3>{});
  if (needed <= 4) return call(std::integral_constant<int, 4>{});
  if constexpr (sizeof(T) == 4) {
    if (needed <= 6) return call(std::integral_constant<int, 6>{});
    if (needed <= 8) return call(std::integral_constant<int, 8>{});
  }
  throw std::logic_error("a row of more than 1024 values");
}

}  // namespace lockstep::gpu
