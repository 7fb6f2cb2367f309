// Random numbers, stochastic levels, and codes of a few bits: see kernels.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/codec/level_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include "compress/codec/kernels.h"
#include "compress/codec/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::codec_kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using WordVec = hn::Vec<Words>;

// Upper and lower halves of the products of all lanes.
HWY_INLINE void multiply(WordVec a, WordVec by, WordVec& high, WordVec& low) {
  const Words d;
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(by);
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(d, static_cast<std::uint32_t>(product));
#else
  const hn::Repartition<std::uint64_t, Words> wide;
  const auto even = hn::MulEven(a, by);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), by);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

// Ten rounds of Philox4x32 on each lane's counter c[0 … 3]; the constants are the paper's.
HWY_INLINE void philox(const ElementRandom& random, WordVec& c0, WordVec& c1, WordVec& c2, WordVec& c3) {
  const Words d;
  const auto multiplier0 = hn::Set(d, 0xd2511f53U);
  const auto multiplier1 = hn::Set(d, 0xcd9e8d57U);
  std::uint32_t key0 = random.key[0];
  std::uint32_t key1 = random.key[1];
  for (int round = 0; round < 10; ++round, key0 += 0x9e3779b9U, key1 += 0xbb67ae85U) {
    WordVec high0, low0, high1, low1;
    multiply(c0, multiplier0, high0, low0);
    multiply(c2, multiplier1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c3 = low0;
  }
}

// The counters of elements 16 * quarter + `lane` to 16 * quarter + lane + Lanes of a group, for all four
// quarters at once.
HWY_INLINE void words_of(const ElementRandom& random, std::uint64_t group, std::size_t lane, WordVec& c0,
                         WordVec& c1, WordVec& c2, WordVec& c3) {
  const Words d;
  const std::uint64_t counter = group * 16 + lane;
  c0 = hn::Add(hn::Set(d, static_cast<std::uint32_t>(counter)),
               hn::Iota(d, 0));  // no carry: 16 divides group * 16
  c1 = hn::Set(d, static_cast<std::uint32_t>(counter >> 32));
  c2 = hn::Set(d, random.salt[0]);
  c3 = hn::Set(d, random.salt[1]);
  philox(random, c0, c1, c2, c3);
}

HWY_ATTR void random_here(const ElementRandom& random, std::uint64_t group, std::uint32_t* words) {
  const Words d;
  for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(d)) {
    WordVec c0, c1, c2, c3;
    words_of(random, group, lane, c0, c1, c2, c3);
    hn::StoreU(c0, d, words + lane);
    hn::StoreU(c1, d, words + 16 + lane);
    hn::StoreU(c2, d, words + 32 + lane);
    hn::StoreU(c3, d, words + 48 + lane);
  }
}

struct Rounding {
  float inverse;
  int levels;

  HWY_INLINE void apply(const float* values, WordVec random, std::uint8_t* codes) const {
    const Floats d;
    const Integers integers;
    const auto x = hn::LoadU(d, values);
    const auto p = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, inverse)), hn::Set(d, static_cast<float>(levels)));
    const auto below = hn::ConvertTo(integers, p);
    const auto rest = hn::Sub(p, hn::ConvertTo(d, below));  // exact
    const auto drawn =
        hn::Mul(hn::ConvertTo(d, hn::BitCast(integers, hn::ShiftRight<8>(random))), hn::Set(d, 0x1p-24F));
    const auto up =
        hn::VecFromMask(integers, hn::RebindMask(integers, hn::Lt(drawn, rest)));  // -1 where true
    const auto level = hn::Sub(below, up);
    const auto middle = hn::Set(integers, levels);
    const auto negative = hn::RebindMask(integers, hn::Lt(x, hn::Zero(d)));
    const auto code = hn::IfThenElse(negative, hn::Sub(middle, level), hn::Add(middle, level));
    store_bytes(hn::BitCast(Words(), code), codes);
  }
};

HWY_ATTR void to_levels_here(const float* values, std::size_t count, float inverse, int levels,
                             const ElementRandom& random, std::uint64_t first, std::uint8_t* codes) {
  const Rounding rounding{inverse, levels};
  for (std::size_t i = 0; i < count; i += kGroup)
    for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(Words())) {
      WordVec c0, c1, c2, c3;
      words_of(random, (first + i) / kGroup, lane, c0, c1, c2, c3);
      rounding.apply(values + i + lane, c0, codes + i + lane);
      rounding.apply(values + i + 16 + lane, c1, codes + i + 16 + lane);
      rounding.apply(values + i + 32 + lane, c2, codes + i + 32 + lane);
      rounding.apply(values + i + 48 + lane, c3, codes + i + 48 + lane);
    }
}

HWY_ATTR bool from_levels_here(const std::uint8_t* codes, std::size_t count, int levels, float step,
                               float* values, Into into) {
  const Floats d;
  const Integers integers;
  const auto middle = hn::Set(integers, levels);
  const auto factor = hn::Set(d, step);
  auto largest = hn::Zero(integers);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto code = load_bytes(codes + i);
    largest = hn::Max(largest, code);
    put(hn::Mul(hn::ConvertTo(d, hn::Sub(code, middle)), factor), values + i, into);
  }
  return hn::GetLane(hn::MaxOfLanes(integers, largest)) <= 2 * levels;
}

HWY_ATTR void to_planes_here(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* planes) {
  for (std::size_t i = 0; i < count; i += kGroup)
    for (int bit = 0; bit < bits; ++bit, planes += 8)
      store_plane(codes + i, static_cast<std::uint8_t>(1 << bit), planes);
}

HWY_ATTR void from_planes_here(const std::uint8_t* planes, std::size_t count, int bits, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; i += kGroup, planes += 8 * bits) load_planes(planes, bits, codes + i);
}

}  // namespace lockstep::codec_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::codec_kernel {

HWY_EXPORT(random_here);
HWY_EXPORT(to_levels_here);
HWY_EXPORT(from_levels_here);
HWY_EXPORT(to_planes_here);
HWY_EXPORT(from_planes_here);

void random_words(const ElementRandom& random, std::uint64_t group, std::uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(random_here)(random, group, words);
}
void to_levels(const float* values, std::size_t count, float inverse, int levels, const ElementRandom& random,
               std::uint64_t first, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(to_levels_here)(values, count, inverse, levels, random, first, codes);
}
bool from_levels(const std::uint8_t* codes, std::size_t count, int levels, float step, float* values,
                 Into into) {
  return HWY_DYNAMIC_DISPATCH(from_levels_here)(codes, count, levels, step, values, into);
}
void to_planes(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* planes) {
  HWY_DYNAMIC_DISPATCH(to_planes_here)(codes, count, bits, planes);
}
void from_planes(const std::uint8_t* planes, std::size_t count, int bits, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(from_planes_here)(planes, count, bits, codes);
}

}  // namespace lockstep::codec_kernel
#endif
