// Power sums in two passes: a chunk of a fixed number of elements gives one partial sum, and the partial sums
// of an array are added up by one block. Each thread adds up its own in order, and threads are joined in
// pairs.
#include <cmath>

#include "optim/cuda/launch.h"
#include "optim/cuda/numbers.cuh"
#include "optim/cuda/table.h"
#include "optim/cuda/updates.h"

namespace lockstep::kernel::cuda {
namespace {

enum class Power { square, any, largest };

// What joins two sums. Of the largest a NaN stays.
template <Power kPower>
__device__ double join(double a, double b) {
  if constexpr (kPower == Power::largest)
    return isnan(a) ? a : !(b <= a) ? b : a;
  else
    return __dadd_rn(a, b);
}

template <Power kPower>
__device__ double term(double x, double p) {
  if constexpr (kPower == Power::square) return __dmul_rn(x, x);
  if constexpr (kPower == Power::any) return pow(fabs(x), p);
  return fabs(x);
}

// All threads' values as one, for the first of them.
template <Power kPower>
__device__ double join_block(double own) {
  __shared__ double values[kThreads];
  values[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      values[threadIdx.x] = join<kPower>(values[threadIdx.x], values[threadIdx.x + half]);
  }
  return values[0];
}

struct SumEntry {
  const void* data;
  std::size_t count;
  double* partials;  // one a chunk
};

template <class E, Power kPower, class Arrays>
__global__ void __launch_bounds__(kThreads)
    add_chunks(const __grid_constant__ Arrays arrays, const double p) {
  const int i = arrays.find(blockIdx.x);
  const unsigned chunk = blockIdx.x - arrays.first_chunk[i];
  const SumEntry& entry = arrays.entries[i];
  const std::size_t begin = static_cast<std::size_t>(chunk) * kChunkElements;
  const auto length =
      static_cast<unsigned>(min(static_cast<std::size_t>(kChunkElements), entry.count - begin));
  const E* const data = static_cast<const E*>(entry.data) + begin;
  double sum = 0;
  for (unsigned at = threadIdx.x; at < length; at += kThreads)
    sum = join<kPower>(sum, term<kPower>(static_cast<double>(widened(data[at])), p));
  sum = join_block<kPower>(sum);
  if (threadIdx.x == 0) entry.partials[chunk] = sum;
}

template <Power kPower>
__global__ void __launch_bounds__(kThreads)
    add_partials(const double* const partials, const unsigned count, double* const to) {
  double sum = 0;
  for (unsigned at = threadIdx.x; at < count; at += kThreads) sum = join<kPower>(sum, partials[at]);
  sum = join_block<kPower>(sum);
  if (threadIdx.x == 0) *to = sum;
}

template <class E, Power kPower>
void add_type(std::span<const ConstBuffer> list, DType dtype, double p, double* partials,
              const Place& place) {
  std::size_t before = 0;
  by_tables<SumEntry>(
      list.size(),
      [&](std::size_t i) {
        double* const own = partials + before;
        before += chunks_of(list[i].count);
        return SumEntry{list[i].data, list[i].dtype == dtype ? list[i].count : 0, own};
      },
      [&]<class Arrays>(const Arrays& arrays, unsigned chunks, unsigned) {
        add_chunks<E, kPower, Arrays><<<chunks, kThreads, 0, place.stream()>>>(arrays, p);
        place.check_launch("launch of a sum over gradients");
      });
}

template <Power kPower>
void add_all(std::span<const ConstBuffer> list, double p, double* sums, double* partials) {
  const Place place(list.front().device);
  add_type<float, kPower>(list, DType::f32, p, partials, place);
  add_type<double, kPower>(list, DType::f64, p, partials, place);
  add_type<__half, kPower>(list, DType::f16, p, partials, place);
  add_type<__nv_bfloat16, kPower>(list, DType::bf16, p, partials, place);
  std::size_t before = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const unsigned count = chunks_of(list[i].count);
    add_partials<kPower><<<1, kThreads, 0, place.stream()>>>(partials + before, count, sums + i);
    place.check_launch("launch of a sum over partial sums");
    before += count;
  }
}

}  // namespace

std::size_t partial_sums(std::size_t count) { return chunks_of(count); }

void power_sums(std::span<const ConstBuffer> list, double p, double* sums, double* partials) {
  if (std::isinf(p))
    add_all<Power::largest>(list, p, sums, partials);
  else if (p == 2)
    add_all<Power::square>(list, p, sums, partials);
  else
    add_all<Power::any>(list, p, sums, partials);
}

}  // namespace lockstep::kernel::cuda
