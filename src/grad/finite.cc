#include "grad/finite.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstdint>

#include "grad/torch_types.h"

namespace lockstep {
namespace {

// `exponent`: its bits, which are all set in infinities and NaN alone. Without a branch, so that the compiler
// may look at many at once.
template <class Bits>
bool finite_bits(const void* data, std::size_t count, Bits exponent) {
  const auto* const bits = static_cast<const Bits*>(data);
  Bits found = 0;
  for (std::size_t i = 0; i < count; ++i)
    found = static_cast<Bits>(found | static_cast<Bits>((bits[i] & exponent) == exponent));
  return found == 0;
}

}  // namespace

bool all_finite(const Buffer& data) {
  if (data.device.kind != Device::Kind::cpu) return at::isfinite(tensor_at(data, nullptr)).all().item<bool>();
  switch (data.dtype) {
    case DType::f64: return finite_bits<std::uint64_t>(data.data, data.count, 0x7ff0000000000000U);
    case DType::f32: return finite_bits<std::uint32_t>(data.data, data.count, 0x7f800000U);
    case DType::f16: return finite_bits<std::uint16_t>(data.data, data.count, 0x7c00U);
    case DType::bf16: return finite_bits<std::uint16_t>(data.data, data.count, 0x7f80U);
    default: return true;
  }
}

bool own_part_finite(const Bucket& bucket) {
  const std::size_t length = own_part(bucket).count;
  const std::size_t begin = length * static_cast<std::size_t>(bucket.group.rank()), end = begin + length;
  const std::size_t size = size_of(bucket.data.dtype);
  return std::ranges::all_of(bucket.tensors, [&](const BucketTensor& tensor) {
    const std::size_t from = std::clamp(tensor.offset, begin, end);
    const std::size_t to = std::clamp(tensor.offset + tensor.count, begin, end);
    return all_finite({static_cast<std::byte*>(bucket.data.data) + from * size, to - from, bucket.data.dtype,
                       bucket.data.device});
  });
}

}  // namespace lockstep
