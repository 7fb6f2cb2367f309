// What the codecs' kernels share. Included once per instruction set.
#if defined(LOCKSTEP_CODEC_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_CODEC_VECTORS_INL_H_
#undef LOCKSTEP_CODEC_VECTORS_INL_H_
#else
#define LOCKSTEP_CODEC_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "compress/codec/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::codec_kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a vector never reaches beyond a quarter of a group.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;

// Stores x, or what was there plus x.
template <class V>
HWY_INLINE void put(V x, float* at, Into into) {
  const Floats d;
  hn::StoreU(into == Into::add ? hn::Add(hn::LoadU(d, at), x) : x, d, at);
}

// The lowest byte of each lane.
template <class V>
HWY_INLINE void store_bytes(V words, std::uint8_t* to) {
  const Bytes d;
  hn::StoreU(hn::TruncateTo(d, words), d, to);
}

HWY_INLINE hn::Vec<Integers> load_bytes(const std::uint8_t* from) {
  return hn::PromoteTo(Integers(), hn::LoadU(Bytes(), from));
}

// Whether each of a group's codes has `bit`, as eight bytes. The plain target has vectors of one lane, whose
// masks are no whole bytes.
HWY_INLINE void store_plane(const std::uint8_t* codes, std::uint8_t bit, std::uint8_t* plane) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < kGroup; i += 8) {
    unsigned byte = 0;
    for (std::size_t k = 0; k < 8; ++k) byte |= ((codes[i + k] & bit) != 0 ? 1U : 0U) << k;
    plane[i / 8] = static_cast<std::uint8_t>(byte);
  }
#else
  const hn::CappedTag<std::uint8_t, kGroup> d;
  for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d))
    hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, codes + i), hn::Set(d, bit)), plane + i / 8);
#endif
}

// A group's codes from its planes.
HWY_INLINE void load_planes(const std::uint8_t* planes, int bits, std::uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < kGroup; ++i) {
    unsigned code = 0;
    for (int bit = 0; bit < bits; ++bit) code |= (planes[8 * bit + i / 8] >> (i % 8) & 1U) << bit;
    codes[i] = static_cast<std::uint8_t>(code);
  }
#else
  const hn::CappedTag<std::uint8_t, kGroup> d;
  for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    auto code = hn::Zero(d);
    for (int bit = 0; bit < bits; ++bit) {
      const auto mask = hn::LoadMaskBits(d, planes + 8 * bit + i / 8);
      code = hn::Or(code, hn::IfThenElseZero(mask, hn::Set(d, static_cast<std::uint8_t>(1 << bit))));
    }
    hn::StoreU(code, d, codes + i);
  }
#endif
}

}  // namespace lockstep::codec_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
