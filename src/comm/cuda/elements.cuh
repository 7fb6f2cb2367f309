// Elements on the GPU: how each storage type becomes a number and back, and the operations on numbers, as
// comm/kernel/reduce.h defines them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lockstep::cuda {

// Elements are what is computed with.
template <class T>
struct Plain {
  using Element = T;
  using Number = T;
  static __device__ __forceinline__ T decode(T x) { return x; }
  static __device__ __forceinline__ T encode(T x) { return x; }
};

// 16-bit floats: computed in f32, rounded to nearest even.
struct F16 {
  using Element = std::uint16_t;
  using Number = float;
  static __device__ __forceinline__ float decode(Element x) { return __half2float(__ushort_as_half(x)); }
  static __device__ __forceinline__ Element encode(float x) { return __half_as_ushort(__float2half_rn(x)); }
};

struct Bf16 {
  using Element = std::uint16_t;
  using Number = float;
  static __device__ __forceinline__ float decode(Element x) {
    return __uint_as_float(static_cast<unsigned>(x) << 16);
  }
  static __device__ __forceinline__ Element encode(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
};

// What came of an operation, as an element.
template <class Codec>
__device__ __forceinline__ typename Codec::Number rounded(typename Codec::Number x) {
  return Codec::decode(Codec::encode(x));
}

// Integers wrap, as unsigned ones do.
template <class T>
using Wrapping =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct Sum {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Product {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    else
      return a * b;
  }
};
struct Minimum {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    return a != a || a < b ? a : b;  // a != a: not a number
  }
};
struct Maximum {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    return a != a || a > b ? a : b;
  }
};
struct BitAnd {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};

// What happens to the tree's result, an element's number.
enum class Finish : int { none, scale, divide };

template <class T>
__device__ __forceinline__ T finished(T x, Finish how, double number) {
  if constexpr (std::is_integral_v<T>) {
    if constexpr (sizeof(T) == 8)
      return x / static_cast<std::int64_t>(number);
    else  // exact, see comm/kernel/plain-inl.h
      return static_cast<T>(static_cast<std::int32_t>(static_cast<double>(x) / number));
  } else {
    const T n = static_cast<T>(number);
    return how == Finish::scale ? x * n : x / n;
  }
}

// W elements that are moved together.
template <class T, int W>
struct alignas(sizeof(T) * W <= 16 ? sizeof(T) * W : 16) Pack {
  T at[W];
};

template <class T, int W>
__device__ __forceinline__ Pack<T, W> load(const void* from, std::size_t pack) {
  return static_cast<const Pack<T, W>*>(from)[pack];
}
template <class T, int W>
__device__ __forceinline__ void store(void* to, std::size_t pack, const Pack<T, W>& x) {
  static_cast<Pack<T, W>*>(to)[pack] = x;
}

}  // namespace lockstep::cuda
