// With g = d_normed · weight and x̂ = (sum - mean) · inverse, of a row:
//   dx = d_sum + inverse · (g - mean(g) - x̂ · mean(g · x̂))
#include <algorithm>

#include "models/cuda/add_norm.h"
#include "models/cuda/fold.cuh"
#include "models/cuda/launch.cuh"
#include "models/cuda/warp_row.cuh"

namespace lockstep::gpu {
namespace {

constexpr int kBackwardThreads = 128;
constexpr int kWarps = kBackwardThreads / kWarp;
constexpr std::int64_t kMostChunks = 396;  // three for each of an H200's 132 multiprocessors

std::int64_t chunk_rows(std::int64_t rows) {
  return std::max<std::int64_t>(kWarps, (rows + kMostChunks - 1) / kMostChunks);
}

template <class T>
struct Backward {
  const T* d_sum;
  const T* d_normed;
  const T* sum;
  const T* weight;
  const float* mean;
  const float* inverse;
  T* dx;
};

// A block takes rows [chunk × chunk_rows, …), a warp every fourth of them.
template <class T, int kVectors>
__global__ void __launch_bounds__(kBackwardThreads)
    add_norm_backward_kernel(Backward<T> b, std::int64_t rows, int columns, std::int64_t chunk_rows,
                             float* partial) {
  using Row = WarpRow<T, kVectors>;
  __shared__ float shared[3][kMostNormColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sums[3][kVectors][kWidth<T>] = {};
  Row weight;
  weight.load(b.weight, columns);
  for (std::int64_t row = begin + warp; row < end; row += kWarps) {
    const std::int64_t at = row * columns;
    Row dy, x, add;
    dy.load(b.d_normed + at, columns);
    x.load(b.sum + at, columns);
    if (b.d_sum != nullptr) add.load(b.d_sum + at, columns);
    const float mean = b.mean[row];
    const float inverse = b.inverse[row];
    float total = 0, product = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) {
        const float normal = (x.value[v][i] - mean) * inverse;
        sums[0][v][i] = fmaf(dy.value[v][i], normal, sums[0][v][i]);
        sums[1][v][i] += dy.value[v][i];
        const float g = dy.value[v][i] * weight.value[v][i];  // 0 behind the row's end, where both are
        x.value[v][i] = normal;
        dy.value[v][i] = g;
        total += g;
        product = fmaf(g, normal, product);
      }
    const float mean_g = warp_sum(total) / static_cast<float>(columns);
    const float mean_product = warp_sum(product) / static_cast<float>(columns);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int i = 0; i < kWidth<T>; ++i) {
        float dx = (dy.value[v][i] - fmaf(x.value[v][i], mean_product, mean_g)) * inverse;
        if (b.d_sum != nullptr) dx += add.value[v][i];
        dx = rounded<T>(dx);
        dy.value[v][i] = dx;
        sums[2][v][i] += dx;  // of columns behind the end too: nobody reads those
      }
    dy.store(b.dx + at, columns);
  }
  // Warp after warp, in one order.
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn)
      for (int s = 0; s < 3; ++s)
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
          if (Row::column(v) < columns)
#pragma unroll
            for (int i = 0; i < kWidth<T>; ++i) {
              float& sum = shared[s][Row::column(v) + i];
              sum = turn == 0 ? sums[s][v][i] : sum + sums[s][v][i];
            }
    __syncthreads();
  }
  for (int s = 0; s < 3; ++s)
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += kBackwardThreads)
      partial[(static_cast<std::int64_t>(s) * gridDim.x + blockIdx.x) * columns + c] = shared[s][c];
}

template <class T>
struct AddNormFinish {
  T* d_weight;
  T* d_bias;
  T* d_branch_bias;

  __device__ void operator()(const double (&sums)[3], std::int64_t c) const {
    d_weight[c] = from_float<T>(static_cast<float>(sums[0]));
    d_bias[c] = from_float<T>(static_cast<float>(sums[1]));
    if (d_branch_bias != nullptr) d_branch_bias[c] = from_float<T>(static_cast<float>(sums[2]));
  }
};

}  // namespace

std::int64_t add_norm_chunks(std::int64_t rows) {
  return std::max<std::int64_t>(1, (rows + chunk_rows(rows) - 1) / chunk_rows(rows));
}

void add_norm_backward(const AddNormBackward& b, cudaStream_t stream) {
  with_element(b.element, [&]<class T>(T) {
    const Backward<T> typed{static_cast<const T*>(b.d_sum),
                            static_cast<const T*>(b.d_normed),
                            static_cast<const T*>(b.sum),
                            static_cast<const T*>(b.weight),
                            b.mean,
                            b.inverse,
                            static_cast<T*>(b.dx)};
    const std::int64_t chunks = add_norm_chunks(b.shape.rows);
    with_vectors<T>(b.shape.columns, [&]<int kVectors>(std::integral_constant<int, kVectors>) {
      launch({"add_norm_backward", dim3(static_cast<unsigned>(chunks)), kBackwardThreads, stream},
             &add_norm_backward_kernel<T, kVectors>, typed, b.shape.rows, static_cast<int>(b.shape.columns),
             chunk_rows(b.shape.rows), b.partial);
    });
    fold<3>("add_norm_backward",
            AddNormFinish<T>{static_cast<T*>(b.d_weight), static_cast<T*>(b.d_bias),
                             static_cast<T*>(b.d_branch_bias)},
            b.partial, chunks, b.shape.columns, stream);
  });
}

}  // namespace lockstep::gpu
