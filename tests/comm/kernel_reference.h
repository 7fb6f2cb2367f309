// The plain reference for reductions: one element at a time, one recursion, no SIMD, nothing shared with
// src/comm/kernel. Every kernel, algorithm and engine in canonical order must give these bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep::testing {

template <class A>
A reference_combine(A a, A b, ReduceOp op) {
  if constexpr (std::is_floating_point_v<A>) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return a + b;
      case ReduceOp::product: return a * b;
      case ReduceOp::min: return std::isnan(a) || a < b ? a : b;
      case ReduceOp::max: return std::isnan(a) || a > b ? a : b;
      default: throw std::logic_error("bit operation on floats");
    }
  } else {
    const auto x = static_cast<std::uint64_t>(a);  // unsigned, so that it wraps
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return static_cast<A>(x + y);
      case ReduceOp::product: return static_cast<A>(x * y);
      case ReduceOp::min: return a < b ? a : b;
      case ReduceOp::max: return a > b ? a : b;
      case ReduceOp::bit_and: return static_cast<A>(x & y);
      case ReduceOp::bit_or: return static_cast<A>(x | y);
    }
  }
  throw std::logic_error("unknown operation");
}

// What is computed with: f32 for 16-bit floats.
template <class S>
auto reference_widen(S value) {
  if constexpr (std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>)
    return to_float(value);
  else
    return value;
}

template <class S, class A>
S reference_round(A value) {
  if constexpr (std::is_same_v<S, Half>)
    return to_half(value);
  else if constexpr (std::is_same_v<S, BFloat16>)
    return to_bfloat16(value);
  else
    return value;
}

// tree(first p) combined with tree(rest), p the largest power of two below n; every node is an element.
template <class S>
S reference_tree(std::span<const S> values, ReduceOp op) {
  if (values.size() == 1) return values[0];
  std::size_t p = 1;
  while (2 * p < values.size()) p *= 2;
  return reference_round<S>(reference_combine(reference_widen(reference_tree(values.first(p), op)),
                                              reference_widen(reference_tree(values.subspan(p), op)), op));
}

template <class S>
S reference_finish(S element, ReduceOp op, int divisor) {
  if (op != ReduceOp::avg) return element;
  auto value = reference_widen(element);
  using A = decltype(value);
  if constexpr (std::is_floating_point_v<A>)
    value /= static_cast<A>(divisor);
  else
    value = static_cast<A>(std::int64_t{value} / divisor);
  return reference_round<S>(value);
}

// Calls f with a value of the storage type that dtype names.
template <class F>
void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::i8: return f(std::int8_t{});
    case DType::u8: return f(std::uint8_t{});
  }
}

// The canonical tree of the ins, then finish.
inline void reference_reduce(void* out, std::span<const void* const> ins, std::size_t count, DType dtype,
                             ReduceOp op, int divisor) {
  with_element(dtype, [&](auto element) {
    using S = decltype(element);
    std::vector<S> values(ins.size());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < ins.size(); ++k)
        std::memcpy(&values[k], static_cast<const std::byte*>(ins[k]) + i * sizeof(S), sizeof(S));
      const S result = reference_finish(reference_tree(std::span<const S>(values), op), op, divisor);
      std::memcpy(static_cast<std::byte*>(out) + i * sizeof(S), &result, sizeof(S));
    }
  });
}

// The first element at which two arrays differ, -1 when there is none. Any NaN equals any NaN: which
// payload survives an addition of two is the processor's choice.
inline std::ptrdiff_t first_difference(const void* a, const void* b, std::size_t count, DType dtype) {
  std::ptrdiff_t found = -1;
  with_element(dtype, [&](auto element) {
    using S = decltype(element);
    for (std::size_t i = 0; i < count && found < 0; ++i) {
      S x;
      S y;
      std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof(S), sizeof(S));
      std::memcpy(&y, static_cast<const std::byte*>(b) + i * sizeof(S), sizeof(S));
      bool same = std::memcmp(&x, &y, sizeof(S)) == 0;
      if constexpr (!std::is_integral_v<S>)
        same = same || (std::isnan(reference_widen(x)) && std::isnan(reference_widen(y)));
      if (!same) found = static_cast<std::ptrdiff_t>(i);
    }
  });
  return found;
}

}  // namespace lockstep::testing
