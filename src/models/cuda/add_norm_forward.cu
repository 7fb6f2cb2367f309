#include "models/cuda/add_norm.h"
#include "models/cuda/launch.cuh"
#include "models/cuda/warp_row.cuh"

namespace lockstep::gpu {
namespace {

constexpr int kForwardThreads = 256;

template <class T>
struct Forward {
  const T* x;
  const T* branch;
  const T* branch_bias;
  const T* weight;
  const T* bias;
  float epsilon;
  T* sum;
  T* normed;
  float* mean;
  float* inverse;
};

template <class T, int kVectors>
__global__ void __launch_bounds__(kForwardThreads)
    add_norm_kernel(Forward<T> f, std::int64_t rows, int columns) {
  using Row = WarpRow<T, kVectors>;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kForwardThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  const std::int64_t at = row * columns;
  Row x;
  x.load(f.x + at, columns);
  if (f.branch != nullptr) {
    Row branch;
    branch.load(f.branch + at, columns);
    if (f.branch_bias != nullptr) {
      Row add;
      add.load(f.branch_bias, columns);
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
#pragma unroll
        for (int i = 0; i < kWidth<T>; ++i) branch.value[v][i] += add.value[v][i];
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) x.value[v][i] = rounded<T>(x.value[v][i] + branch.value[v][i]);
    x.store(f.sum + at, columns);
  }
  float total = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) total += x.value[v][i];
  const float mean = warp_sum(total) / static_cast<float>(columns);
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (Row::column(v) < columns)
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) {
        const float d = x.value[v][i] - mean;
        squares = fmaf(d, d, squares);
      }
  const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(columns) + f.epsilon);
  Row weight, bias;
  weight.load(f.weight, columns);
  bias.load(f.bias, columns);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i)
      x.value[v][i] = fmaf((x.value[v][i] - mean) * inverse, weight.value[v][i], bias.value[v][i]);
  x.store(f.normed + at, columns);
  if (threadIdx.x % kWarp == 0) {
    f.mean[row] = mean;
    f.inverse[row] = inverse;
  }
}

}  // namespace

void add_norm_forward(const AddNormForward& f, cudaStream_t stream) {
  with_element(f.element, [&]<class T>(T) {
    const Forward<T> typed{static_cast<const T*>(f.x),
                           static_cast<const T*>(f.branch),
                           static_cast<const T*>(f.branch_bias),
                           static_cast<const T*>(f.weight),
                           static_cast<const T*>(f.bias),
                           static_cast<float>(f.epsilon),
                           static_cast<T*>(f.sum),
                           static_cast<T*>(f.normed),
                           f.mean,
                           f.inverse};
    constexpr int kRows = kForwardThreads / kWarp;
    const dim3 blocks(static_cast<unsigned>((f.shape.rows + kRows - 1) / kRows));
    with_vectors<T>(f.shape.columns, [&]<int kVectors>(std::integral_constant<int, kVectors>) {
      launch({"add_norm_forward", blocks, kForwardThreads, stream}, &add_norm_kernel<T, kVectors>, typed,
             f.shape.rows, static_cast<int>(f.shape.columns));
    });
  });
}

}  // namespace lockstep::gpu
