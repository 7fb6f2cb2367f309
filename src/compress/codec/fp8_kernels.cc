// f32 to fp8 and back, on the bits: see kernels.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/codec/fp8_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "compress/codec/kernels.h"
#include "compress/codec/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::codec_kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Mantissa bits and the exponent's bias say all about a type.
template <int kMantissa, int kBias>
struct Small {
  static constexpr int kDropped = 23 - kMantissa;                         // bits of an f32's mantissa
  static constexpr std::uint32_t kRebias = (127U - kBias) << 23;          // between the exponents
  static constexpr std::uint32_t kSmallestNormal = (128U - kBias) << 23;  // as an f32's bits
  static constexpr float kUnit = 1.0F / (1U << (kBias - 1 + kMantissa));  // the smallest number above zero
  static constexpr float kAlign = 8388608.0F * kUnit;  // 2^23 units: where a unit is the last bit

  static HWY_ATTR void encode(const float* values, std::size_t count, float inverse, float largest,
                              std::uint8_t* codes) {
    const Floats d;
    const Words words;
    const Integers integers;
    const auto factor = hn::Set(d, inverse);
    const auto most = hn::BitCast(integers, hn::Set(d, largest));
    const auto align = hn::Set(d, kAlign);
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto bits = hn::BitCast(words, hn::Mul(hn::LoadU(d, values + i), factor));
      const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(words, 0x80U));
      // As integers magnitudes have their order; a few next to the largest would round beyond it.
      const auto magnitude = hn::Min(hn::BitCast(integers, hn::And(bits, hn::Set(words, 0x7fffffffU))), most);
      const auto unsigned_magnitude = hn::BitCast(words, magnitude);
      const auto odd = hn::And(hn::ShiftRight<kDropped>(unsigned_magnitude), hn::Set(words, 1U));
      const auto half = hn::Set(words, (1U << (kDropped - 1)) - 1 - kRebias);
      const auto normal = hn::ShiftRight<kDropped>(hn::Add(hn::Add(unsigned_magnitude, half), odd));
      // Below the normal numbers the addition rounds to a whole number of units.
      const auto aligned = hn::BitCast(words, hn::Add(hn::BitCast(d, magnitude), align));
      const auto subnormal = hn::Sub(aligned, hn::BitCast(words, align));
      const auto is_small = hn::Lt(magnitude, hn::Set(integers, static_cast<std::int32_t>(kSmallestNormal)));
      const auto code = hn::IfThenElse(hn::RebindMask(words, is_small), subnormal, normal);
      store_bytes(hn::Or(code, sign), codes + i);
    }
  }

  static HWY_ATTR void decode(const std::uint8_t* codes, std::size_t count, float scale, float* values,
                              Into into) {
    const Floats d;
    const Words words;
    const Integers integers;
    const auto factor = hn::Set(d, scale);
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto code = load_bytes(codes + i);
      const auto rest = hn::And(code, hn::Set(integers, 0x7f));
      const auto sign = hn::ShiftLeft<24>(hn::And(hn::BitCast(words, code), hn::Set(words, 0x80U)));
      const auto normal = hn::Add(hn::ShiftLeft<kDropped>(hn::BitCast(words, rest)), hn::Set(words, kRebias));
      const auto subnormal = hn::Mul(hn::ConvertTo(d, rest), hn::Set(d, kUnit));
      const auto is_small = hn::Lt(rest, hn::Set(integers, 1 << kMantissa));
      const auto magnitude = hn::IfThenElse(hn::RebindMask(d, is_small), subnormal, hn::BitCast(d, normal));
      const auto number = hn::BitCast(d, hn::Or(hn::BitCast(words, magnitude), sign));
      put(hn::Mul(number, factor), values + i, into);
    }
  }
};

using E4M3 = Small<3, 7>;
using E5M2 = Small<2, 15>;

HWY_ATTR void to_fp8_here(Fp8 type, const float* values, std::size_t count, float inverse, float largest,
                          std::uint8_t* codes) {
  if (type == Fp8::e4m3)
    E4M3::encode(values, count, inverse, largest, codes);
  else
    E5M2::encode(values, count, inverse, largest, codes);
}

HWY_ATTR void from_fp8_here(Fp8 type, const std::uint8_t* codes, std::size_t count, float scale,
                            float* values, Into into) {
  if (type == Fp8::e4m3)
    E4M3::decode(codes, count, scale, values, into);
  else
    E5M2::decode(codes, count, scale, values, into);
}

}  // namespace lockstep::codec_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::codec_kernel {

HWY_EXPORT(to_fp8_here);
HWY_EXPORT(from_fp8_here);

void to_fp8(Fp8 type, const float* values, std::size_t count, float inverse, float largest,
            std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(to_fp8_here)(type, values, count, inverse, largest, codes);
}
void from_fp8(Fp8 type, const std::uint8_t* codes, std::size_t count, float scale, float* values, Into into) {
  HWY_DYNAMIC_DISPATCH(from_fp8_here)(type, codes, count, scale, values, into);
}

}  // namespace lockstep::codec_kernel
#endif
