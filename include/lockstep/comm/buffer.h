// What a collective reads and writes: elements of one type on one device. A buffer borrows its
// memory; nothing here assumes that the host can touch it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "lockstep/base/dtype.h"

namespace lockstep {

// `custom` is a program's own, which libtorch calls PrivateUse1. What a kind needs to be used: comm/device.h.
struct Device {
  enum class Kind : unsigned char { cpu, cuda, custom };
  Kind kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
inline constexpr std::size_t kDeviceKinds = 3;

struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // elements, not bytes
  DType dtype = DType::f32;
  Device device = {};

  std::size_t bytes() const { return count * size_of(dtype); }
};

struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device = {};

  ConstBuffer() = default;
  ConstBuffer(const void* data_, std::size_t count_, DType dtype_, Device device_ = {})
      : data(data_), count(count_), dtype(dtype_), device(device_) {}
  ConstBuffer(const Buffer& b)  // NOLINT(google-explicit-constructor): as const from non-const
      : data(b.data), count(b.count), dtype(b.dtype), device(b.device) {}

  std::size_t bytes() const { return count * size_of(dtype); }
};

// buffer(v) for a vector, array or span of an element type.
template <std::ranges::contiguous_range R>
requires kIsElement<std::remove_cv_t<std::ranges::range_value_t<R>>>
auto buffer(R&& range) {
  using T = std::remove_reference_t<std::ranges::range_reference_t<R>>;
  constexpr DType dtype = kDTypeOf<std::remove_cv_t<T>>;
  if constexpr (std::is_const_v<T>)
    return ConstBuffer(std::ranges::data(range), std::ranges::size(range), dtype);
  else
    return Buffer{std::ranges::data(range), std::ranges::size(range), dtype};
}

// For which call something is taken as a buffer, so that a refusal can say so.
struct BufferUse {
  const char* call = "";  // "all_reduce"
  bool reduces = false;
  ReduceOp op = ReduceOp::sum;
  bool temporary = false;  // what is written goes when the call returns: others must hold its memory
};

// What collectives take in place of a buffer: a type says here how its memory is read (`in`) and written
// (`out`; a const object has none), and whether it is a handle, whose copy stands for the same memory. Here
// for vectors, arrays and spans; lockstep/parallel/tensor.h has tensors.
template <class T>
struct AsBuffer;

template <std::ranges::contiguous_range R>
requires kIsElement<std::remove_cv_t<std::ranges::range_value_t<R>>>
struct AsBuffer<R> {
  static constexpr bool kIsHandle = std::ranges::borrowed_range<R>;
  static ConstBuffer in(const R& range, const BufferUse&) { return buffer(range); }
  template <class Q>
  requires std::same_as<decltype(buffer(std::declval<Q&>())), Buffer>
  static Buffer out(Q& range, const BufferUse&) { return buffer(range); }
};

// A T that is read by a collective, and one that is written: not a temporary, which would take the result
// with it.
template <class T>
concept InElements = requires(const std::remove_cvref_t<T>& x) {
  AsBuffer<std::remove_cvref_t<T>>::in(x, BufferUse{});
};
template <class T>
concept OutElements = InElements<T> &&
                      (std::is_lvalue_reference_v<T> || AsBuffer<std::remove_cvref_t<T>>::kIsHandle) &&
                      requires(std::remove_reference_t<T>& x) {
  AsBuffer<std::remove_cvref_t<T>>::out(x, BufferUse{});
};

// The element type that holds any value of a number's type: std::int64_t for long long. void: none does
// (unsigned integers but the smallest, bool).
template <class T>
requires std::is_arithmetic_v<T>
using ElementFor = std::conditional_t<
    kIsElement<T>, T,
    std::conditional_t<std::is_same_v<T, bool> || !std::is_integral_v<T> || std::is_unsigned_v<T>, void,
                       std::conditional_t<sizeof(T) == 1, std::int8_t,
                                          std::conditional_t<(sizeof(T) <= 4), std::int32_t, std::int64_t>>>>;

}  // namespace lockstep
