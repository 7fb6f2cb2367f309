// How elements of a storage type become vectors of the type that is computed in, and back. Included once per
// instruction set.
#if defined(LOCKSTEP_KERNEL_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNEL_CODEC_INL_H_
#undef LOCKSTEP_KERNEL_CODEC_INL_H_
#else
#define LOCKSTEP_KERNEL_CODEC_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A codec reads and writes groups of 2 * Lanes(d) elements as two vectors of numbers. It has
//   Element      the storage type as the vectors' loads and stores see it
//   load<P>      vector P (0 or 1) of the group that starts at `from`
//   round        the elements nearest to a vector of numbers, as numbers
//   encode       a vector of numbers rounded to elements, which can be stored more than once
//   Tag<D>       the Highway tag of the encoded vector
//   kInterleaved whether vector 0 holds the even elements and vector 1 the odd ones, and encode takes
//                both; else vector 0 holds the first half and vector 1 the second

// Elements are what is computed with.
template <class T>
struct Plain {
  using Element = T;
  template <class D>
  using Tag = D;
  static constexpr bool kInterleaved = false;
  template <int P, class D>
  static HWY_INLINE hn::Vec<D> load(D d, const T* from) {
    return hn::LoadU(d, from + P * hn::Lanes(d));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D, hn::Vec<D> v) {
    return v;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> encode(D, hn::Vec<D> v) {
    return v;
  }
};

// 16-bit floats: `bits` of f32 lanes in the low half of each u32 lane, packed to u16.
template <class D, class Bits>
HWY_INLINE auto pack(D, Bits bits) {
  const hn::Rebind<std::uint16_t, D> du16;
  const hn::RebindToSigned<D> di32;
  return hn::DemoteTo(du16, hn::BitCast(di32, bits));  // saturates, but every lane is at most 0xffff
}

template <class D>
HWY_INLINE auto unpack(D, const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, D> du16;
  const hn::RebindToUnsigned<D> du32;
  return hn::PromoteTo(du32, hn::LoadU(du16, from));
}

// The bits of `v` rounded to bfloat16, in the upper half of each lane; the lower half is not cleared.
// Highway's own DemoteTo truncates in the versions that we support, so the rounding to nearest even is
// done here, as in lockstep::to_bfloat16. For what comes of arithmetic on bfloat16 values: a NaN is then one
// of theirs or the processor's own, whose lower half is zero, and stays one.
template <class D>
HWY_INLINE auto round_result_to_bf16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<decltype(d)> du32;
  const auto bits = hn::BitCast(du32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1U));
  return hn::Add(hn::Add(bits, hn::Set(du32, 0x7fffU)), odd);
}

// The same for any f32.
template <class D>
HWY_INLINE auto round_to_bf16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<decltype(d)> du32;
  const auto quiet = hn::Or(hn::BitCast(du32, v), hn::Set(du32, 0x400000U));
  return hn::IfThenElse(hn::RebindMask(du32, hn::IsNaN(v)), quiet, round_result_to_bf16(d, v));
}

// bfloat16 in order, for when the other side is f32: nothing is added up there.
struct Bf16 {
  using Element = std::uint16_t;
  template <class D>
  using Tag = hn::Rebind<std::uint16_t, D>;
  static constexpr bool kInterleaved = false;
  template <int P, class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* from) {
    return hn::BitCast(d, hn::ShiftLeft<16>(unpack(d, from + P * hn::Lanes(d))));
  }
  template <class D>
  static HWY_INLINE auto encode(D d, hn::Vec<D> v) {
    return pack(d, hn::ShiftRight<16>(round_to_bf16(d, v)));
  }
};

#if HWY_TARGET == HWY_SCALAR
struct Bf16Pairs : Bf16 {
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du32;
    return hn::BitCast(d, hn::And(round_result_to_bf16(d, v), hn::Set(du32, 0xffff0000U)));
  }
};
#else
// bfloat16 on both sides: a shift or a mask is all it takes to widen, and nothing moves between lanes.
struct Bf16Pairs {
  using Element = std::uint16_t;
  template <class D>
  using Tag = hn::Repartition<std::uint16_t, D>;
  static constexpr bool kInterleaved = true;
  template <int P, class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* from) {  // lane 2i is the lower half of u32
    const hn::RebindToUnsigned<D> du32;
    const auto both = hn::BitCast(du32, hn::LoadU(Tag<D>(), from));
    if constexpr (P == 0)
      return hn::BitCast(d, hn::ShiftLeft<16>(both));
    else
      return hn::BitCast(d, hn::And(both, hn::Set(du32, 0xffff0000U)));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du32;
    return hn::BitCast(d, hn::And(round_result_to_bf16(d, v), hn::Set(du32, 0xffff0000U)));
  }
  template <class D>
  static HWY_INLINE auto encode(D d, hn::Vec<D> even, hn::Vec<D> odd) {
    const hn::RebindToUnsigned<D> du32;
    const auto lower = hn::ShiftRight<16>(round_result_to_bf16(d, even));
    const auto upper = hn::And(round_result_to_bf16(d, odd), hn::Set(du32, 0xffff0000U));
    return hn::BitCast(Tag<D>(), hn::Or(lower, upper));
  }
};
#endif

// The processor converts f16 itself (F16C, AVX-512). Elsewhere Highway's emulation loses NaN and rounds
// subnormals differently on some targets, so we do it on the bits (not inlined:
// twenty instructions for each input of each tree would be most of the library).
#undef LOCKSTEP_NATIVE_F16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define LOCKSTEP_NATIVE_F16 1
#else
#define LOCKSTEP_NATIVE_F16 0
#endif

struct F16 {
  using Element = std::uint16_t;
  template <class D>
  using Tag = hn::Rebind<std::uint16_t, D>;
  static constexpr bool kInterleaved = false;
  template <int P, class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* from) {
    return decode(d, from + P * hn::Lanes(d));
  }

#if LOCKSTEP_NATIVE_F16
  template <class D>
  static HWY_INLINE hn::Vec<D> decode(D d, const std::uint16_t* from) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(Tag<D>(), from)));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> round(D d, hn::Vec<D> v) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::DemoteTo(df16, v));
  }
  template <class D>
  static HWY_INLINE auto encode(D, hn::Vec<D> v) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::BitCast(Tag<D>(), hn::DemoteTo(df16, v));
  }
#else
  template <class D>
  static HWY_NOINLINE HWY_ATTR hn::Vec<D> decode(D d, const std::uint16_t* from) {
    return from_bits(d, unpack(d, from));
  }
  template <class D>
  static HWY_NOINLINE HWY_ATTR hn::Vec<D> round(D d, hn::Vec<D> v) {
    return from_bits(d, to_bits(d, v));
  }
  template <class D>
  static HWY_NOINLINE HWY_ATTR auto encode(D d, hn::Vec<D> v) {
    return pack(d, to_bits(d, v));
  }
#endif

 private:
#if !LOCKSTEP_NATIVE_F16
  // The half's bits are the lower ones of each lane.
  template <class D, class Bits>
  static HWY_INLINE hn::Vec<D> from_bits(D d, Bits half) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du32, 0x8000U)));
    const auto rest = hn::And(half, hn::Set(du32, 0x7fffU));
    const auto shifted = hn::ShiftLeft<13>(rest);
    const auto compared = hn::BitCast(di32, rest);
    // Zero or subnormal: mantissa * 2^-24, exact in f32.
    const auto small = hn::BitCast(du32, hn::Mul(hn::ConvertTo(d, compared), hn::Set(d, 0x1p-24F)));
    auto bits = hn::Add(shifted, hn::Set(du32, 0x38000000U));
    bits = select(hn::Lt(compared, hn::Set(di32, 0x400)), small, bits);
    const auto infinite = hn::Or(shifted, hn::Set(du32, 0x7f800000U));
    bits = select(hn::Gt(compared, hn::Set(di32, 0x7bff)), infinite, bits);
    const auto quiet = hn::Or(infinite, hn::Set(du32, 0x400000U));
    bits = select(hn::Gt(compared, hn::Set(di32, 0x7c00)), quiet, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }
  template <class D>
  static HWY_INLINE auto to_bits(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const auto bits = hn::BitCast(du32, v);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 0x8000U));
    const auto magnitude = hn::And(bits, hn::Set(du32, 0x7fffffffU));
    const auto top = hn::ShiftRight<13>(magnitude);
    const auto compared = hn::BitCast(di32, magnitude);
    const auto odd = hn::And(top, hn::Set(du32, 1U));
    // 0xc8000fff: minus 0x38000000 (the exponents' bias), plus 0xfff (half a unit, less the tie).
    const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(du32, 0xc8000fffU))));
    // Subnormal: the addition of 0.5 rounds to the right place.
    const auto aligned = hn::BitCast(du32, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F)));
    const auto small = hn::Sub(aligned, hn::Set(du32, 0x3f000000U));
    const auto nan = hn::Or(hn::And(top, hn::Set(du32, 0x3ffU)), hn::Set(du32, 0x7e00U));
    auto half = select(hn::Lt(compared, hn::Set(di32, 0x38800000)), small, normal);
    half = select(hn::Gt(compared, hn::Set(di32, 0x477fefff)), hn::Set(du32, 0x7c00U), half);
    half = select(hn::Gt(compared, hn::Set(di32, 0x7f800000)), nan, half);
    return hn::Or(half, sign);
  }
  template <class Mask, class V>
  static HWY_INLINE V select(Mask mask, V yes, V no) {
    return hn::IfThenElse(hn::RebindMask(hn::DFromV<V>(), mask), yes, no);
  }
#endif
};

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
