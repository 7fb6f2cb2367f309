// Magnitudes and sums of a block, 8 bits and signs: see kernels.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/codec/block_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include <cmath>

#include "compress/codec/kernels.h"
#include "compress/codec/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::codec_kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR std::uint32_t largest_here(const float* values, std::size_t count) {
  // As integers, which have an order for NaN too.
  const Integers d;
  const auto magnitude = hn::Set(d, 0x7fffffff);
  const auto* bits = reinterpret_cast<const std::int32_t*>(values);
  const std::size_t lanes = hn::Lanes(d);
  auto first = hn::Zero(d);
  auto second = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += 2 * lanes) {
    first = hn::Max(first, hn::And(hn::LoadU(d, bits + i), magnitude));
    second = hn::Max(second, hn::And(hn::LoadU(d, bits + i + lanes), magnitude));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, hn::Max(first, second))));
}

// Sixteen sums side by side, whatever the vectors' length: the compiler puts them into vectors of this
// instruction set.
template <class Term>
HWY_INLINE double sum_of(const float* values, std::size_t count, const Term& term) {
  constexpr std::size_t kSums = 16;
  double sums[kSums] = {};
  for (std::size_t i = 0; i < count; i += kSums)
    for (std::size_t k = 0; k < kSums; ++k) sums[k] += term(static_cast<double>(values[i + k]));
  for (std::size_t half = kSums / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

HWY_ATTR double magnitudes_here(const float* values, std::size_t count) {
  return sum_of(values, count, [](double x) HWY_ATTR { return std::fabs(x); });
}

HWY_ATTR double squares_here(const float* values, std::size_t count) {
  return sum_of(values, count, [](double x) HWY_ATTR { return x * x; });
}

HWY_ATTR void to_int8_here(const float* values, std::size_t count, float inverse, std::uint8_t* codes) {
  const Floats d;
  const auto factor = hn::Set(d, inverse);
  // 1.5 * 2^23: the sum's lowest bits are the nearest integer, in two's complement.
  const auto shift = hn::Set(d, 0x1.8p23F);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d))
    store_bytes(hn::BitCast(Words(), hn::Add(hn::Mul(hn::LoadU(d, values + i), factor), shift)), codes + i);
}

HWY_ATTR void from_int8_here(const std::uint8_t* codes, std::size_t count, float step, float* values,
                             Into into) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> bytes;
  const auto factor = hn::Set(d, step);
  const auto* integers = reinterpret_cast<const std::int8_t*>(codes);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto wide = hn::PromoteTo(Integers(), hn::LoadU(bytes, integers + i));
    put(hn::Mul(hn::ConvertTo(d, wide), factor), values + i, into);
  }
}

// The top byte of each element goes through a small buffer, so that the signs of many are one mask.
HWY_ATTR void to_signs_here(const float* values, std::size_t count, std::uint8_t* bits) {
  const Words d;
  HWY_ALIGN std::uint8_t tops[kBlock];
  const auto* words = reinterpret_cast<const std::uint32_t*>(values);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = count - begin < kBlock ? count - begin : kBlock;
    for (std::size_t i = 0; i < length; i += hn::Lanes(d))
      store_bytes(hn::ShiftRight<24>(hn::LoadU(d, words + begin + i)), tops + i);
    for (std::size_t i = 0; i < length; i += kGroup) store_plane(tops + i, 0x80, bits + (begin + i) / 8);
  }
}

HWY_ATTR void from_signs_here(const std::uint8_t* bits, std::size_t count, float magnitude, float* values,
                              Into into) {
  const Floats d;
  const Words words;
  const auto plus = hn::Set(d, magnitude);
  const auto minus = hn::Neg(plus);
  const auto own_bit = hn::Shl(hn::Set(words, 1U), hn::Iota(words, 0));
  for (std::size_t i = 0; i < count; i += 16) {
    const std::uint32_t sixteen = bits[i / 8] | static_cast<std::uint32_t>(bits[i / 8 + 1]) << 8;
    for (std::size_t k = 0; k < 16; k += hn::Lanes(d)) {
      const auto negative = hn::RebindMask(d, hn::TestBit(hn::Set(words, sixteen >> k), own_bit));
      put(hn::IfThenElse(negative, minus, plus), values + i + k, into);
    }
  }
}

const char* target_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace lockstep::codec_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::codec_kernel {

HWY_EXPORT(largest_here);
HWY_EXPORT(magnitudes_here);
HWY_EXPORT(squares_here);
HWY_EXPORT(to_int8_here);
HWY_EXPORT(from_int8_here);
HWY_EXPORT(to_signs_here);
HWY_EXPORT(from_signs_here);
HWY_EXPORT(target_here);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_here)(); }

std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(largest_here)(values, count);
}
double sum_of_magnitudes(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(magnitudes_here)(values, count);
}
double sum_of_squares(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(squares_here)(values, count);
}
void to_int8(const float* values, std::size_t count, float inverse, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(to_int8_here)(values, count, inverse, codes);
}
void from_int8(const std::uint8_t* codes, std::size_t count, float step, float* values, Into into) {
  HWY_DYNAMIC_DISPATCH(from_int8_here)(codes, count, step, values, into);
}
void to_signs(const float* values, std::size_t count, std::uint8_t* bits) {
  HWY_DYNAMIC_DISPATCH(to_signs_here)(values, count, bits);
}
void from_signs(const std::uint8_t* bits, std::size_t count, float magnitude, float* values, Into into) {
  HWY_DYNAMIC_DISPATCH(from_signs_here)(bits, count, magnitude, values, into);
}

}  // namespace lockstep::codec_kernel
#endif
