// Elements as numbers of the arithmetic's type, and several of them at once: 8 or 16 bytes an access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lockstep::kernel::cuda {

// 16-bit types are computed with in f32.
template <class E>
struct Number {
  using type = float;
};
template <>
struct Number<double> {
  using type = double;
};

__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline float widened(__half x) { return __half2float(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounded to nearest, ties to even.
template <class E, class T>
__device__ inline E narrowed(T x) {
  if constexpr (sizeof(E) == 2 && sizeof(T) == 4) {
    if constexpr (__is_same(E, __half))
      return __float2half_rn(x);
    else
      return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// kCount elements that lie side by side, on a boundary of their size: one access, past the caches' reuse,
// since nothing here is read twice.
template <class E, int kCount>
struct Pack {
  static_assert(sizeof(E) * kCount == 16 || sizeof(E) * kCount == 8);
  using Word = typename std::conditional<sizeof(E) * kCount == 16, uint4, uint2>::type;

  __device__ static Pack load(const E* from) {
    const Word word = __ldcs(reinterpret_cast<const Word*>(from));
    Pack pack;
    memcpy(&pack, &word, sizeof(Word));
    return pack;
  }
  __device__ void store(E* to) const {
    Word word;
    memcpy(&word, this, sizeof(Word));
    __stcs(reinterpret_cast<Word*>(to), word);
  }

  E at[kCount];
};

}  // namespace lockstep::kernel::cuda
