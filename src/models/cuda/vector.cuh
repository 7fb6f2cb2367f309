// 16 bytes of f32, f16 or bf16 as floats, and back. All arithmetic of these kernels is f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>

#include "models/cuda/element.h"

namespace lockstep::gpu {

template <class T>
inline constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

template <class T>
struct alignas(16) Vector {
  T value[kWidth<T>];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// As it will be read again.
template <class T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

// `at` is a multiple of the width, and `from` as aligned as libtorch's memory.
template <class T>
__device__ Vector<T> load_vector(const T* from, std::int64_t at) {
  return *reinterpret_cast<const Vector<T>*>(from + at);
}
template <class T>
__device__ void store_vector(T* to, std::int64_t at, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to + at) = vector;
}

template <class T>
__device__ void load_floats(const float* from, std::int64_t at, float (&to)[kWidth<T>]) {
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) to[i] = from[at + i];
}

// Calls `call` with a value of the element's type.
template <class Call>
void with_element(Element element, const Call& call) {
  switch (element) {
    case Element::f32: return call(float{});
    case Element::f16: return call(__half{});
    case Element::bf16: return call(__nv_bfloat16{});
  }
  throw std::logic_error("a tensor of another type than f32, f16 and bf16");
}

}  // namespace lockstep::gpu
