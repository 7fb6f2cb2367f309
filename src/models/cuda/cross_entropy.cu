#include <algorithm>
#include <bit>

#include "models/cuda/cross_entropy.h"
#include "models/cuda/launch.cuh"
#include "models/cuda/warp_row.cuh"

namespace lockstep::gpu {
namespace {

constexpr int kMostThreads = 1024;

// One thread for each 16 bytes of a row, as long as there are threads.
int threads_for(std::int64_t classes) {
  const std::int64_t vectors = (classes + 7) / 8;
  return static_cast<int>(
      std::clamp<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(vectors)), kWarp, kMostThreads));
}

// Of numbers seen so far: the largest, and the sum of exp(number - largest).
struct Mass {
  float largest = -INFINITY;
  float sum = 0;

  __device__ void add(Mass other) {
    const float most = fmaxf(largest, other.largest);
    if (most == -INFINITY) {
      sum += other.sum;  // 0, or a NaN
      return;
    }
    sum = sum * expf(largest - most) + other.sum * expf(other.largest - most);
    largest = most;
  }
};

// kStep values at a time: 16 bytes where rows are aligned to them, else one.
template <class T, int kStep>
struct Step {
  float value[kStep];
  __device__ explicit Step(const T* from) {
    if constexpr (kStep == 1) {
      value[0] = to_float(*from);
    } else {
      const Vector<T> loaded = load_vector(from, 0);
#pragma unroll
      for (int i = 0; i < kStep; ++i) value[i] = to_float(loaded.value[i]);
    }
  }
};

template <class T, int kStep>
__global__ void __launch_bounds__(kMostThreads) rows_kernel(CrossEntropyForward f) {
  __shared__ Mass shared[kMostThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  const T* const logits = static_cast<const T*>(f.logits) + row * f.classes;
  Mass mass;
  for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kStep; c < f.classes;
       c += static_cast<std::int64_t>(blockDim.x) * kStep) {
    const Step<T, kStep> step(logits + c);
    float most = step.value[0];
#pragma unroll
    for (int i = 1; i < kStep; ++i) most = fmaxf(most, step.value[i]);
    if (most > mass.largest) {
      mass.sum *= expf(mass.largest - most);
      mass.largest = most;
    }
    if (mass.largest != -INFINITY) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) mass.sum += expf(step.value[i] - mass.largest);
    } else {
#pragma unroll
      for (int i = 0; i < kStep; ++i)
        if (step.value[i] != step.value[i]) mass.sum = step.value[i];  // a NaN
    }
  }
#pragma unroll
  for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
    Mass other;
    other.largest = __shfl_xor_sync(0xffffffffu, mass.largest, lane_mask);
    other.sum = __shfl_xor_sync(0xffffffffu, mass.sum, lane_mask);
    mass.add(other);
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mass;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) mass.add(shared[warp]);
  const float log_sum = mass.largest + logf(mass.sum);
  const std::int64_t target = f.target[row];
  f.log_sum[row] = log_sum;
  f.losses[row] = target == f.ignored                 ? 0.0f
                  : target >= 0 && target < f.classes ? log_sum - to_float(logits[target])
                                                      : NAN;
}

__global__ void __launch_bounds__(kMostThreads) mean_kernel(CrossEntropyForward f) {
  __shared__ double sums[kMostThreads];
  __shared__ double counts[kMostThreads];
  double sum = 0, count = 0;
  for (std::int64_t row = threadIdx.x; row < f.rows; row += kMostThreads) {
    sum += static_cast<double>(f.losses[row]);
    count += f.target[row] == f.ignored ? 0 : 1;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (unsigned half = kMostThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  f.mean[0] = static_cast<float>(sums[0] / counts[0]);  // NaN where no row counts, as libtorch has it
  f.mean[1] = static_cast<float>(1 / counts[0]);
}

template <class T, int kStep>
__global__ void __launch_bounds__(kMostThreads) backward_kernel(CrossEntropyBackward b) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = b.target[row];
  const T* const logits = static_cast<const T*>(b.logits) + row * b.classes;
  T* const out = static_cast<T*>(b.d_logits) + row * b.classes;
  const bool counts = target != b.ignored;
  const float log_sum = b.log_sum[row];
  const float scale = counts ? b.d_loss[0] * b.mean[1] : 0.0f;
  for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kStep; c < b.classes;
       c += static_cast<std::int64_t>(blockDim.x) * kStep) {
    float gradient[kStep];
    if (counts) {
      const Step<T, kStep> step(logits + c);
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float share = expf(step.value[i] - log_sum);
        gradient[i] = (c + i == target ? share - 1.0f : share) * scale;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kStep; ++i) gradient[i] = 0;
    }
    if constexpr (kStep == 1) {
      out[c] = from_float<T>(gradient[0]);
    } else {
      Vector<T> vector;
#pragma unroll
      for (int i = 0; i < kStep; ++i) vector.value[i] = from_float<T>(gradient[i]);
      store_vector(out, c, vector);
    }
  }
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForward& f, cudaStream_t stream) {
  with_element(f.element, [&]<class T>(T) {
    const Launch rows{"cross_entropy_forward", dim3(static_cast<unsigned>(f.rows)), threads_for(f.classes),
                      stream};
    if (f.rows > 0) {
      if (f.classes % kWidth<T> == 0)
        launch(rows, &rows_kernel<T, kWidth<T>>, f);
      else
        launch(rows, &rows_kernel<T, 1>, f);
    }
    launch({"cross_entropy_forward", dim3(1), kMostThreads, stream}, &mean_kernel, f);
  });
}

void cross_entropy_backward(const CrossEntropyBackward& b, cudaStream_t stream) {
  if (b.rows == 0) return;
  with_element(b.element, [&]<class T>(T) {
    const Launch rows{"cross_entropy_backward", dim3(static_cast<unsigned>(b.rows)), threads_for(b.classes),
                      stream};
    if (b.classes % kWidth<T> == 0)
      launch(rows, &backward_kernel<T, kWidth<T>>, b);
    else
      launch(rows, &backward_kernel<T, 1>, b);
  });
}

}  // namespace lockstep::gpu
