// Which elements are large: see kernels.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/codec/topk_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include <bit>

#include "compress/codec/kernels.h"
#include "compress/codec/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::codec_kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR std::size_t indices_here(const float* values, std::size_t count, std::uint32_t bits,
                                  std::uint32_t* indices) {
  const Integers d;
  const Words words;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(d, 0x7fffffff);
  const auto below =
      hn::Set(d, static_cast<std::int32_t>(bits) - 1);  // bits are those of a magnitude: no overflow
  const auto* from = reinterpret_cast<const std::int32_t*>(values);
  std::size_t found = 0;
  std::size_t i = 0;
  auto index = hn::Iota(words, 0);
  const auto step = hn::Set(words, static_cast<std::uint32_t>(lanes));
  for (; i + lanes <= count; i += lanes, index = hn::Add(index, step)) {
    const auto large = hn::Gt(hn::And(hn::LoadU(d, from + i), magnitude), below);
    if (HWY_LIKELY(hn::AllFalse(d, large))) continue;
    // Not CompressStore, which is slow on some processors: the slack takes what is stored too much.
    hn::StoreU(hn::Compress(index, hn::RebindMask(words, large)), words, indices + found);
    found += hn::CountTrue(d, large);
  }
  for (; i < count; ++i)
    if ((std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU) >= bits)
      indices[found++] = static_cast<std::uint32_t>(i);
  return found;
}

}  // namespace lockstep::codec_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::codec_kernel {

HWY_EXPORT(indices_here);

std::size_t indices_from(const float* values, std::size_t count, std::uint32_t bits, std::uint32_t* indices) {
  return HWY_DYNAMIC_DISPATCH(indices_here)(values, count, bits, indices);
}

}  // namespace lockstep::codec_kernel
#endif
