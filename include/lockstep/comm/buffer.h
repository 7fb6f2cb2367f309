// What a collective reads and writes: elements of one type on one device. A buffer borrows its
// memory; nothing here assumes that the host can touch it.
#pragma once

#include <concepts>
#include <cstddef>
#include <ranges>
#include <type_traits>

#include "lockstep/base/dtype.h"

namespace lockstep {

struct Device {
  enum class Kind : unsigned char { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

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

}  // namespace lockstep
