// Trees of up to eight inputs of a float sum, which is what training lives on, are unrolled: all inputs of a
// thread are under way at once. Everything else goes input by input, with one partial result a level of the
// tree, as a binary counter adds: after input k those subtrees are complete that end with it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "comm/cuda/check.h"
#include "comm/cuda/elements.cuh"
#include "comm/cuda/reduce.h"
#include "lockstep/base/error.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = std::size_t{1} << 20;
constexpr int kUnrolled = 8;  // inputs
constexpr int kLevels = std::countr_zero(kMostInputs) + 1;

template <int Most>
struct Job {
  const void* ins[Most];
  void* outs[Most];
  int in_count;
  int out_count;
  std::size_t packs;  // of 16 bytes; the elements behind them go one by one
  std::size_t count;
  Finish finish;
  double number;
};

template <class Codec>
constexpr int kWidth = 16 / static_cast<int>(sizeof(typename Codec::Element));

// Inputs First … First + N - 1 at element w, but for the rounding of the last result.
template <class Codec, int First, int N, int W>
__device__ __forceinline__ typename Codec::Number tree_at(const Pack<typename Codec::Element, W>* ins,
                                                          int w) {
  if constexpr (N == 1) {
    return Codec::decode(ins[First].at[w]);
  } else {
    constexpr int kLower = N > 4 ? 4 : N > 2 ? 2 : 1;  // largest power of two below N
    auto a = tree_at<Codec, First, kLower, W>(ins, w);
    auto b = tree_at<Codec, First + kLower, N - kLower, W>(ins, w);
    if constexpr (kLower > 1) a = rounded<Codec>(a);
    if constexpr (N - kLower > 1) b = rounded<Codec>(b);
    return Sum::combine(a, b);
  }
}

template <class Codec, int N, int W, class J>
__device__ __forceinline__ void unrolled_store(const J& job, const Pack<typename Codec::Element, W>* ins,
                                               std::size_t pack) {
  Pack<typename Codec::Element, W> result;
#pragma unroll
  for (int w = 0; w < W; ++w) {
    auto x = tree_at<Codec, 0, N, W>(ins, w);
    if (job.finish != Finish::none) x = finished(N > 1 ? rounded<Codec>(x) : x, job.finish, job.number);
    result.at[w] = Codec::encode(x);
  }
  for (int k = 0; k < job.out_count; ++k) store(job.outs[k], pack, result);
}

// U packs a thread, so that enough loads are under way for few inputs, too.
template <class Codec, int N>
__global__ void __launch_bounds__(kThreads) sum_unrolled(const __grid_constant__ Job<kUnrolled> job) {
  using E = typename Codec::Element;
  constexpr int W = kWidth<Codec>;
  constexpr int U = N <= 2 ? 4 : N <= 4 ? 2 : 1;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads * U + threadIdx.x; i < job.packs;
       i += threads * U) {
    Pack<E, W> ins[U][N];
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (i + u * kThreads < job.packs) ins[u][k] = load<E, W>(job.ins[k], i + u * kThreads);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u * kThreads < job.packs) unrolled_store<Codec, N, W>(job, ins[u], i + u * kThreads);
  }
  for (std::size_t i = job.packs * W + static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < job.count; i += threads) {
    Pack<E, 1> ins[N];
#pragma unroll
    for (int k = 0; k < N; ++k) ins[k] = load<E, 1>(job.ins[k], i);
    unrolled_store<Codec, N, 1>(job, ins, i);
  }
}

template <class Codec, class Op, int W>
__device__ __forceinline__ Pack<typename Codec::Element, W> combined(
    const Pack<typename Codec::Element, W>& a, const Pack<typename Codec::Element, W>& b) {
  Pack<typename Codec::Element, W> result;
#pragma unroll
  for (int w = 0; w < W; ++w)
    result.at[w] = Codec::encode(Op::combine(Codec::decode(a.at[w]), Codec::decode(b.at[w])));
  return result;
}

template <class Codec, class Op, int W>
__device__ __forceinline__ void counted_at(const Job<kMostInputs>& job, std::size_t pack) {
  using E = typename Codec::Element;
  Pack<E, W> levels[kLevels];  // levels[l]: a complete subtree of 2^l inputs
  for (int k = 0; k < job.in_count; ++k) {
    Pack<E, W> x = load<E, W>(job.ins[k], pack);
    int level = 0;
    for (int c = k; (c & 1) != 0; c >>= 1) x = combined<Codec, Op, W>(levels[level++], x);
    levels[level] = x;
  }
  // What is left: the subtrees of the count's ones, the smallest last.
  int level = __ffs(job.in_count) - 1;
  Pack<E, W> x = levels[level];
  while (++level < kLevels)
    if ((job.in_count >> level & 1) != 0) x = combined<Codec, Op, W>(levels[level], x);
  if (job.finish != Finish::none)
#pragma unroll
    for (int w = 0; w < W; ++w)
      x.at[w] = Codec::encode(finished(Codec::decode(x.at[w]), job.finish, job.number));
  for (int k = 0; k < job.out_count; ++k) store(job.outs[k], pack, x);
}

template <class Codec, class Op>
__global__ void __launch_bounds__(kThreads) reduce_counted(const __grid_constant__ Job<kMostInputs> job) {
  constexpr int W = kWidth<Codec>;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * kThreads;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::size_t i = first; i < job.packs; i += threads) counted_at<Codec, Op, W>(job, i);
  for (std::size_t i = job.packs * W + first; i < job.count; i += threads) counted_at<Codec, Op, 1>(job, i);
}

bool aligned(std::span<const void* const> pointers) {
  return std::ranges::all_of(pointers,
                             [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; });
}

unsigned blocks_for(std::size_t threads) {
  return static_cast<unsigned>(std::clamp((threads + kThreads - 1) / kThreads, std::size_t{1}, kMostBlocks));
}

// What a launch is given besides its kernel.
struct Task {
  std::span<void* const> outs;
  std::span<const void* const> ins;
  std::size_t count;
  std::size_t element_bytes;
  Finish finish;
  double number;
  DeviceStream stream;

  template <int Most>
  Job<Most> job() const {
    Job<Most> job{};
    std::ranges::copy(ins, job.ins);
    std::ranges::copy(outs, job.outs);
    job.in_count = static_cast<int>(ins.size());
    job.out_count = static_cast<int>(outs.size());
    const bool wide = aligned(ins) && aligned({const_cast<const void* const*>(outs.data()), outs.size()});
    job.packs = wide ? count * element_bytes / 16 : 0;
    job.count = count;
    job.finish = finish;
    job.number = number;
    return job;
  }
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream.handle); }
};

template <class Codec, int N>
void launch_sum(const Task& task) {
  if (static_cast<int>(task.ins.size()) != N) {
    if constexpr (N > 1) launch_sum<Codec, N - 1>(task);
    return;
  }
  constexpr int U = N <= 2 ? 4 : N <= 4 ? 2 : 1;
  const auto job = task.job<kUnrolled>();
  const std::size_t threads = job.packs > 0 ? (job.packs + U - 1) / U : job.count;
  sum_unrolled<Codec, N><<<blocks_for(threads), kThreads, 0, task.handle()>>>(job);
}

template <class Codec, class Op>
void launch_counted(const Task& task) {
  const auto job = task.job<static_cast<int>(kMostInputs)>();
  reduce_counted<Codec, Op>
      <<<blocks_for(job.packs > 0 ? job.packs : job.count), kThreads, 0, task.handle()>>>(job);
}

template <class Codec>
void launch_float(ReduceOp op, const Task& task) {
  switch (op) {
    case ReduceOp::min: return launch_counted<Codec, Minimum>(task);
    case ReduceOp::max: return launch_counted<Codec, Maximum>(task);
    case ReduceOp::product: return launch_counted<Codec, Product>(task);
    default: break;
  }
  const bool few = std::max(task.ins.size(), task.outs.size()) <= static_cast<std::size_t>(kUnrolled);
  return few ? launch_sum<Codec, kUnrolled>(task) : launch_counted<Codec, Sum>(task);
}

template <class T>
void launch_integer(ReduceOp op, const Task& task) {
  switch (op) {
    case ReduceOp::min: return launch_counted<Plain<T>, Minimum>(task);
    case ReduceOp::max: return launch_counted<Plain<T>, Maximum>(task);
    case ReduceOp::product: return launch_counted<Plain<T>, Product>(task);
    case ReduceOp::bit_and: return launch_counted<Plain<T>, BitAnd>(task);
    case ReduceOp::bit_or: return launch_counted<Plain<T>, BitOr>(task);
    default: return launch_counted<Plain<T>, Sum>(task);
  }
}

void launch(DType dtype, ReduceOp op, const Task& task) {
  switch (dtype) {
    case DType::f64: return launch_float<Plain<double>>(op, task);
    case DType::f32: return launch_float<Plain<float>>(op, task);
    case DType::f16: return launch_float<F16>(op, task);
    case DType::bf16: return launch_float<Bf16>(op, task);
    case DType::i64: return launch_integer<std::int64_t>(op, task);
    case DType::i32: return launch_integer<std::int32_t>(op, task);
    case DType::i8: return launch_integer<std::int8_t>(op, task);
    case DType::u8: return launch_integer<std::uint8_t>(op, task);
  }
}

void check_reduction(const kernel::Reduction& reduction) {
  if (!supports(reduction.op, reduction.dtype))
    throw UsageError(std::string("reduction ") + to_string(reduction.op) + " of " +
                     to_string(reduction.dtype) + "; bit operations need i64, i32, i8 or u8");
  if (reduction.op == ReduceOp::avg && !kernel::accepts_divisor(reduction.dtype, reduction.divisor))
    throw UsageError("avg of " + std::string(to_string(reduction.dtype)) + " with divisor " +
                     std::to_string(reduction.divisor) +
                     "; accepted: a positive number, for integers a whole one");
}

}  // namespace

void reduce_tree(std::span<void* const> outs, std::span<const void* const> ins, std::size_t count,
                 const kernel::Reduction& reduction, const DeviceStream& stream) {
  check_reduction(reduction);
  if (ins.empty() || ins.size() > kMostInputs || outs.size() > kMostInputs)
    throw UsageError("a reduction of " + std::to_string(ins.size()) + " inputs to " +
                     std::to_string(outs.size()) + " outs on a GPU; accepted: 1 to " +
                     std::to_string(kMostInputs));
  if (outs.empty() || count == 0) return;
  Task task{.outs = outs,
            .ins = ins,
            .count = count,
            .element_bytes = size_of(reduction.dtype),
            .finish = Finish::none,
            .number = 1,
            .stream = stream};
  if (reduction.op == ReduceOp::avg && reduction.divisor != 1) {  // as in comm/kernel/reduce.cc
    int exponent = 0;
    const bool power = is_float(reduction.dtype) && std::frexp(reduction.divisor, &exponent) == 0.5 &&
                       std::abs(exponent) < 100;
    task.finish = power ? Finish::scale : Finish::divide;
    task.number = power ? 1.0 / reduction.divisor : reduction.divisor;
  }
  const OnDevice on(stream.device.index);
  launch(reduction.dtype, reduction.op, task);
  check(cudaGetLastError(), "the launch of a reduction", stream.device.index);
}

}  // namespace lockstep::cuda
