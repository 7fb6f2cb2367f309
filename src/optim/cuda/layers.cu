// The kernels of layer_kernels.h on the GPU. A block of a parameter has sixteen threads, one for each of the
// sums that the processor has side by side: thread k adds up elements k, k + 16 …, and the sixteen are then
// joined in the processor's pairs.
#include "optim/cuda/launch.h"
#include "optim/cuda/numbers.cuh"
#include "optim/cuda/rules.cuh"
#include "optim/cuda/table.h"
#include "optim/cuda/updates.h"

namespace lockstep::kernel::cuda {
namespace {

constexpr unsigned kSums = 16;
static_assert(kChunkElements == kBlockElements * (kThreads / kSums), "a chunk is a CUDA block's blocks");

struct LayerEntry {
  const void* parameter;  // what is kept of it
  const void* gradient;
  void* first;
  void* second;
  std::size_t own;    // elements that this worker has
  std::size_t begin;  // the first one's place in the parameter
  std::size_t first_block;
  std::size_t count;  // elements of the blocks that they lie in, counted whole
};

template <class T>
struct LambConstants {
  explicit LambConstants(const LambUpdate& lamb)
      : beta1(static_cast<T>(lamb.beta1)),
        rest1(static_cast<T>(1 - lamb.beta1)),
        beta2(static_cast<T>(lamb.beta2)),
        rest2(static_cast<T>(1 - lamb.beta2)),
        eps(static_cast<T>(lamb.eps)),
        gain(static_cast<T>(1 / lamb.correction1)),
        correction2(static_cast<T>(lamb.correction2)),
        weight_decay(static_cast<T>(lamb.weight_decay)) {}

  __device__ T direction(T p, T first, T second) const {
    using M = Math<T>;
    const T scale = M::add(M::div(M::sqrt(second), correction2), eps);
    return M::mul_add(p, weight_decay, M::div(M::mul(first, gain), scale));
  }

  T beta1, rest1, beta2, rest2, eps, gain, correction2, weight_decay;
};

// What is measured beside the parameter: value(entry, at, p) of element `at` of the worker's own.
template <class E>
struct Gradients {
  __device__ double value(const LayerEntry& entry, std::size_t at, double) const {
    const double g = widened(static_cast<const E*>(entry.gradient)[at]);
    return factor == 1 ? g : __dmul_rn(g, factor);
  }
  double factor;
};

template <class T, class E, class K>
struct Directions {
  __device__ double value(const LayerEntry& entry, std::size_t at, double p) const {
    using M = Math<T>;
    K* const first = static_cast<K*>(entry.first) + at;
    K* const second = static_cast<K*>(entry.second) + at;
    const T grad = M::mul(widened(static_cast<const E*>(entry.gradient)[at]), factor);
    const T m = M::mul_add(grad, c.rest1, M::mul(widened(*first), c.beta1));
    const T v = M::mul_add(M::mul(grad, c.rest2), grad, M::mul(widened(*second), c.beta2));
    const K kept_m = narrowed<K>(m), kept_v = narrowed<K>(v);
    *first = kept_m;
    *second = kept_v;
    return c.direction(static_cast<T>(p), widened(kept_m), widened(kept_v));
  }
  LambConstants<T> c;
  T factor;
};

template <class K, class Second, class Parts>
__global__ void __launch_bounds__(kThreads)
    measure(const __grid_constant__ Parts parts, const __grid_constant__ Second second, const LayerSums to) {
  const int i = parts.find(blockIdx.x);
  const LayerEntry& entry = parts.entries[i];
  const std::size_t block = entry.begin / kBlockElements +
                            static_cast<std::size_t>(blockIdx.x - parts.first_chunk[i]) * (kThreads / kSums) +
                            threadIdx.x / kSums;
  const std::size_t block_begin = block * kBlockElements;
  const std::size_t begin = max(block_begin, entry.begin);
  const std::size_t end = min(block_begin + kBlockElements, entry.begin + entry.own);
  const bool mine = begin < end;
  const std::size_t number = entry.first_block + block;
  const std::int32_t cut = mine ? to.cut[number] : -1;
  double* const elements =
      to.values + 2 * to.blocks + (cut < 0 ? 0 : 2 * kBlockElements * static_cast<std::size_t>(cut));
  const unsigned k = threadIdx.x % kSums;
  double first_sum = 0, second_sum = 0;
  if (mine)
    for (std::size_t x = block_begin + k; x < end; x += kSums) {
      if (x < begin) continue;
      const std::size_t at = x - entry.begin;
      const double p = widened(static_cast<const K*>(entry.parameter)[at]);
      const double u = second.value(entry, at, p);
      if (cut >= 0) {
        elements[x - block_begin] = p;
        elements[kBlockElements + x - block_begin] = u;
      }
      first_sum = __dadd_rn(first_sum, __dmul_rn(p, p));
      second_sum = __dadd_rn(second_sum, __dmul_rn(u, u));
    }
  for (unsigned half = kSums / 2; half > 0; half /= 2) {
    const double other_first = __shfl_down_sync(0xffffffffU, first_sum, half, kSums);
    const double other_second = __shfl_down_sync(0xffffffffU, second_sum, half, kSums);
    if (k >= half) continue;
    first_sum = __dadd_rn(first_sum, other_first);
    second_sum = __dadd_rn(second_sum, other_second);
  }
  if (!mine || k != 0 || cut >= 0) return;
  to.values[2 * number] = first_sum;
  to.values[2 * number + 1] = second_sum;
}

LayerEntry entry_of(const LayerPart& part, bool wanted) {
  const Elements& e = part.elements;
  const std::size_t begin = part.begin / kBlockElements * kBlockElements;
  return {.parameter = e.kept_parameter(),
          .gradient = e.gradient,
          .first = e.first,
          .second = e.second,
          .own = e.count,
          .begin = part.begin,
          .first_block = part.first_block,
          .count = wanted && e.count > 0 ? part.begin + e.count - begin : 0};
}

// Parts of one step have one factor.
template <class K, class Second>
void measure_type(std::span<const LayerPart> parts, DType dtype, bool master, const Second& second,
                  const LayerSums& to, const Place& place) {
  by_tables<LayerEntry>(
      parts.size(),
      [&](std::size_t i) {
        const Elements& e = parts[i].elements;
        return entry_of(parts[i], e.dtype == dtype && (e.master != nullptr) == master);
      },
      [&]<class Parts>(const Parts& table, unsigned chunks, unsigned) {
        measure<K, Second, Parts><<<chunks, kThreads, 0, place.stream()>>>(table, second, to);
        place.check_launch("launch of the norms of parameters");
      });
}

// p -= rate * u of one slice.
template <class T, class E, class K>
__global__ void __launch_bounds__(kThreads)
    take_step(const Elements e, const __grid_constant__ LambConstants<T> c, const T minus_rate) {
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= e.count) return;
  K* const kept = static_cast<K*>(e.master != nullptr ? e.master : e.parameter) + at;
  const T p = widened(*kept);
  const T u = c.direction(p, widened(static_cast<const K*>(e.first)[at]),
                          widened(static_cast<const K*>(e.second)[at]));
  const T result = Math<T>::mul_add(u, minus_rate, p);
  if constexpr (!__is_same(E, K)) *kept = result;
  static_cast<E*>(e.parameter)[at] = narrowed<E>(result);
}

template <class T, class E, class K>
void step_type(const Elements& e, const LambUpdate& lamb, double rate, const Place& place) {
  if (e.count == 0) return;
  const auto blocks = static_cast<unsigned>((e.count + kThreads - 1) / kThreads);
  take_step<T, E, K>
      <<<blocks, kThreads, 0, place.stream()>>>(e, LambConstants<T>(lamb), static_cast<T>(-rate));
  place.check_launch("launch of LAMB's step");
}

}  // namespace

void measure_lars(std::span<const LayerPart> parts, const LayerSums& to) {
  if (parts.empty()) return;
  const Place place(parts.front().elements.device);
  const double factor = parts.front().elements.gradient_factor;
  measure_type<float>(parts, DType::f32, false, Gradients<float>{factor}, to, place);
  measure_type<double>(parts, DType::f64, false, Gradients<double>{factor}, to, place);
  measure_type<__half>(parts, DType::f16, false, Gradients<__half>{factor}, to, place);
  measure_type<float>(parts, DType::f16, true, Gradients<__half>{factor}, to, place);
  measure_type<__nv_bfloat16>(parts, DType::bf16, false, Gradients<__nv_bfloat16>{factor}, to, place);
  measure_type<float>(parts, DType::bf16, true, Gradients<__nv_bfloat16>{factor}, to, place);
}

void measure_lamb(std::span<const LayerPart> parts, const LambUpdate& lamb, const LayerSums& to) {
  if (parts.empty()) return;
  const Place place(parts.front().elements.device);
  const double factor = parts.front().elements.gradient_factor;
  const auto narrow = static_cast<float>(factor);
  const LambConstants<float> c(lamb);
  measure_type<float>(parts, DType::f32, false, Directions<float, float, float>{c, narrow}, to, place);
  measure_type<double>(parts, DType::f64, false,
                       Directions<double, double, double>{LambConstants<double>(lamb), factor}, to, place);
  measure_type<__half>(parts, DType::f16, false, Directions<float, __half, __half>{c, narrow}, to, place);
  measure_type<float>(parts, DType::f16, true, Directions<float, __half, float>{c, narrow}, to, place);
  measure_type<__nv_bfloat16>(parts, DType::bf16, false,
                              Directions<float, __nv_bfloat16, __nv_bfloat16>{c, narrow}, to, place);
  measure_type<float>(parts, DType::bf16, true, Directions<float, __nv_bfloat16, float>{c, narrow}, to,
                      place);
}

void step_lamb(std::span<const Elements> list, const LambUpdate& lamb, double rate) {
  if (list.empty()) return;
  const Place place(list.front().device);
  for (const Elements& e : list) {
    const bool master = e.master != nullptr;
    switch (e.dtype) {
      case DType::f32: step_type<float, float, float>(e, lamb, rate, place); break;
      case DType::f64: step_type<double, double, double>(e, lamb, rate, place); break;
      case DType::f16:
        if (master)
          step_type<float, __half, float>(e, lamb, rate, place);
        else
          step_type<float, __half, __half>(e, lamb, rate, place);
        break;
      default:
        if (master)
          step_type<float, __nv_bfloat16, float>(e, lamb, rate, place);
        else
          step_type<float, __nv_bfloat16, __nv_bfloat16>(e, lamb, rate, place);
        break;
    }
  }
}

}  // namespace lockstep::kernel::cuda
