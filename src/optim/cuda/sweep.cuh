// The kernel under every update: loads, applies a rule, stores; many slices a launch.
//
// What it moves is all that it costs: AdamW of f32 reads 16 bytes an element and writes 12; of 16 bits with
// master weights 14 and 14. A block takes a chunk of one slice, 16 bytes a thread and array at a time, so
// that an SM has some 64 KiB under way, several times what its share of the memory's latency asks for.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "optim/cuda/launch.h"
#include "optim/cuda/numbers.cuh"
#include "optim/cuda/table.h"
#include "optim/update.h"

namespace lockstep::kernel::cuda {

struct SliceEntry {
  void* parameter;
  const void* gradient;
  void* first;
  void* second;
  void* master;
  std::size_t count;
};

// E: parameters' and gradients' elements; K: the state's, and the master weights' where it is another type.
template <class E, class K, class Rule, class Slices>
__global__ void __launch_bounds__(kThreads)
    sweep(const __grid_constant__ Slices slices, const __grid_constant__ Rule rule,
          const double gradient_factor) {
  using T = typename Rule::T;
  constexpr bool kMaster = !__is_same(E, K);
  constexpr int kPack = 16 / static_cast<int>(sizeof(K));
  const int i = slices.find(blockIdx.x);
  const SliceEntry& slice = slices.entries[i];
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x - slices.first_chunk[i]) * kChunkElements;
  const auto length =
      static_cast<unsigned>(min(static_cast<std::size_t>(kChunkElements), slice.count - begin));
  E* const parameter = static_cast<E*>(slice.parameter) + begin;
  const E* const gradient = static_cast<const E*>(slice.gradient) + begin;
  K* const first = Rule::kStates > 0 ? static_cast<K*>(slice.first) + begin : nullptr;
  K* const second = Rule::kStates > 1 ? static_cast<K*>(slice.second) + begin : nullptr;
  K* const master = kMaster ? static_cast<K*>(slice.master) + begin : nullptr;
  const T factor = static_cast<T>(gradient_factor);

  const auto update = [&](K kept, E grad, K& m, K& v) {
    T x = widened(m), y = widened(v);
    const T result = rule.apply(widened(kept), Math<T>::mul(widened(grad), factor), x, y);
    if constexpr (Rule::kStates > 0) m = narrowed<K>(x);
    if constexpr (Rule::kStates > 1) v = narrowed<K>(y);
    return result;
  };

  const auto places = reinterpret_cast<std::uintptr_t>(parameter) |
                      reinterpret_cast<std::uintptr_t>(gradient) | reinterpret_cast<std::uintptr_t>(first) |
                      reinterpret_cast<std::uintptr_t>(second) | reinterpret_cast<std::uintptr_t>(master);
  const unsigned packed = places % 16 == 0 ? length / kPack * kPack : 0;
  for (unsigned at = threadIdx.x * kPack; at < packed; at += kThreads * kPack) {
    Pack<K, kPack> kept;
    if constexpr (kMaster)
      kept = Pack<K, kPack>::load(master + at);
    else
      kept = Pack<K, kPack>::load(parameter + at);
    const auto grad = Pack<E, kPack>::load(gradient + at);
    Pack<K, kPack> m = {}, v = {};
    if constexpr (Rule::kStates > 0)
      if (rule.reads_first()) m = Pack<K, kPack>::load(first + at);
    if constexpr (Rule::kStates > 1) v = Pack<K, kPack>::load(second + at);
    Pack<E, kPack> rounded;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const T result = update(kept.at[k], grad.at[k], m.at[k], v.at[k]);
      rounded.at[k] = narrowed<E>(result);
      if constexpr (kMaster) kept.at[k] = result;
    }
    rounded.store(parameter + at);
    if constexpr (kMaster) kept.store(master + at);
    if constexpr (Rule::kStates > 0) m.store(first + at);
    if constexpr (Rule::kStates > 1) v.store(second + at);
  }
  // What fills no pack, or lies on no boundary of one: the same operations.
  for (unsigned at = packed + threadIdx.x; at < length; at += kThreads) {
    K m = {}, v = {};
    if constexpr (Rule::kStates > 0)
      if (rule.reads_first()) m = first[at];
    if constexpr (Rule::kStates > 1) v = second[at];
    K kept;
    if constexpr (kMaster)
      kept = master[at];
    else
      kept = parameter[at];
    const T result = update(kept, gradient[at], m, v);
    parameter[at] = narrowed<E>(result);
    if constexpr (kMaster) master[at] = result;
    if constexpr (Rule::kStates > 0) first[at] = m;
    if constexpr (Rule::kStates > 1) second[at] = v;
  }
}

// Those of the list that have these types, in as few launches as their number allows.
template <class E, class K, class Rule>
void sweep_type(std::span<const Elements> list, DType dtype, const Rule& rule, const Place& place) {
  constexpr bool kMaster = !__is_same(E, K);
  std::vector<const Elements*> mine;
  for (const Elements& one : list)
    if (one.dtype == dtype && (one.master != nullptr) == kMaster) mine.push_back(&one);
  // Slices of one step have one factor; those that have another are another launch.
  while (!mine.empty()) {
    const double factor = mine.front()->gradient_factor;
    const auto rest = std::stable_partition(
        mine.begin(), mine.end(), [&](const Elements* one) { return one->gradient_factor == factor; });
    by_tables<SliceEntry>(
        static_cast<std::size_t>(rest - mine.begin()),
        [&](std::size_t i) {
          const Elements& one = *mine[i];
          return SliceEntry{one.parameter, one.gradient, one.first, one.second, one.master, one.count};
        },
        [&]<class Slices>(const Slices& slices, unsigned chunks, unsigned) {
          sweep<E, K, Rule, Slices><<<chunks, kThreads, 0, place.stream()>>>(slices, rule, factor);
          place.check_launch("launch of an optimizer's update");
        });
    mine.erase(mine.begin(), rest);
  }
}

// MakeRule: a template with a rule for each arithmetic's type.
template <template <class> class MakeRule, class Update>
void sweep_all(std::span<const Elements> list, const Update& how) {
  const Place place(list.front().device);
  const MakeRule<float> narrow(how);
  const MakeRule<double> wide(how);
  sweep_type<float, float>(list, DType::f32, narrow, place);
  sweep_type<double, double>(list, DType::f64, wide, place);
  sweep_type<__half, __half>(list, DType::f16, narrow, place);
  sweep_type<__half, float>(list, DType::f16, narrow, place);
  sweep_type<__nv_bfloat16, __nv_bfloat16>(list, DType::bf16, narrow, place);
  sweep_type<__nv_bfloat16, float>(list, DType::bf16, narrow, place);
}

}  // namespace lockstep::kernel::cuda
