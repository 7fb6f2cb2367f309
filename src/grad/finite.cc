#include "grad/finite.h"

#include <algorithm>
#include <array>
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

// In a function, so that it is there before the first static object that adds one.
std::array<MarkNotFinite, kDeviceKinds>& device_marks() {
  static std::array<MarkNotFinite, kDeviceKinds> all = {};
  return all;
}

}  // namespace

void add_device_finite(Device::Kind kind, MarkNotFinite mark) {
  device_marks()[static_cast<std::size_t>(kind)] = mark;
}

bool all_finite(const Buffer& data) {
  switch (data.dtype) {
    case DType::f64: return finite_bits<std::uint64_t>(data.data, data.count, 0x7ff0000000000000U);
    case DType::f32: return finite_bits<std::uint32_t>(data.data, data.count, 0x7f800000U);
    case DType::f16: return finite_bits<std::uint16_t>(data.data, data.count, 0x7c00U);
    case DType::bf16: return finite_bits<std::uint16_t>(data.data, data.count, 0x7f80U);
    default: return true;
  }
}

std::vector<Buffer> own_tensors(const Bucket& bucket) {
  const Buffer own = own_result(bucket);
  const std::size_t begin = own.count * static_cast<std::size_t>(bucket.group.rank()),
                    end = begin + own.count;
  const std::size_t size = size_of(bucket.data.dtype);
  std::vector<Buffer> list;
  for (const BucketTensor& tensor : bucket.tensors) {
    const std::size_t from = std::clamp(tensor.offset, begin, end);
    const std::size_t to = std::clamp(tensor.offset + tensor.count, begin, end);
    list.push_back(
        {static_cast<std::byte*>(own.data) + (from - begin) * size, to - from, own.dtype, own.device});
  }
  return list;
}

void mark_not_finite(std::span<const Buffer> list, const torch::Tensor& found) {
  if (list.empty()) return;
  if (const MarkNotFinite mark = device_marks()[static_cast<std::size_t>(list.front().device.kind)])
    return mark(list, found.data_ptr<std::int32_t>());
  const torch::NoGradGuard no_grad;
  for (const Buffer& data : list) {
    if (data.count == 0) continue;
    const torch::Tensor x = tensor_at(data, nullptr);
    // Infinity less infinity is no number, and no number is not 0.
    torch::Tensor(found).add_((x - x).ne(0).any().to(torch::kInt32).view({1}));
  }
  torch::Tensor(found).clamp_(0, 1);
}

}  // namespace lockstep
