// For every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/kernel/copy.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_ATTR void stream(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t head = (lanes - reinterpret_cast<std::uintptr_t>(to) % lanes) % lanes;
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 2 * lanes <= bytes; i += 2 * lanes) {
    const auto first = hn::LoadU(d, from + i);
    const auto second = hn::LoadU(d, from + i + lanes);
    hn::Stream(first, d, to + i);
    hn::Stream(second, d, to + i + lanes);
  }
  std::memcpy(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace lockstep::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "comm/kernel/copy.h"

namespace lockstep::kernel {
namespace {
constexpr std::size_t kLeast = 4096;  // of a piece: below it ends cost more than streaming saves
}

HWY_EXPORT(stream);

void copy(void* to, const void* from, std::size_t bytes, std::size_t whole) {
  if (bytes == 0) return;
  if (whole < kStreamed || bytes < kLeast) {
    std::memcpy(to, from, bytes);
    return;
  }
  HWY_DYNAMIC_DISPATCH(stream)
  (static_cast<std::uint8_t*>(to), static_cast<const std::uint8_t*>(from), bytes);
}

}  // namespace lockstep::kernel
#endif
