#include "compress/codec/levels.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using codec_kernel::kBlock;
using codec_kernel::kGroup;
constexpr std::size_t kPlaneBytes = kGroup / 8;

}  // namespace

LevelPlanes::LevelPlanes(int levels)
    : levels_(levels), bits_(std::bit_width(static_cast<unsigned>(2 * levels))) {}

void LevelPlanes::encode(const float* values, std::size_t elements, float inverse,
                         const codec_kernel::ElementRandom& random, std::uint64_t first,
                         std::byte* planes) const {
  alignas(64) std::uint8_t codes[kBlock];
  auto* to = reinterpret_cast<std::uint8_t*>(planes);
  codec_kernel::to_levels(values, codec_kernel::padded(elements), inverse, levels_, random, first, codes);
  const std::size_t whole = elements / kGroup * kGroup;
  codec_kernel::to_planes(codes, whole, bits_, to);
  if (whole == elements) return;
  std::memset(codes + elements, 0, kGroup - elements % kGroup);  // bits behind the last element are zero
  std::uint8_t last[8 * kPlaneBytes];
  codec_kernel::to_planes(codes + whole, kGroup, bits_, last);
  const std::size_t used = (elements - whole + 7) / 8;
  for (int bit = 0; bit < bits_; ++bit)
    std::memcpy(to + bytes(whole) + static_cast<std::size_t>(bit) * used,
                last + static_cast<std::size_t>(bit) * kPlaneBytes, used);
}

void LevelPlanes::decode(const std::byte* planes, std::size_t elements, float step, float* values, Into into,
                         const Codec& codec) const {
  alignas(64) std::uint8_t codes[kBlock];
  const auto* from = reinterpret_cast<const std::uint8_t*>(planes);
  const std::size_t whole = elements / kGroup * kGroup;
  codec_kernel::from_planes(from, whole, bits_, codes);
  if (whole != elements) {
    std::uint8_t last[8 * kPlaneBytes] = {};
    const std::size_t used = (elements - whole + 7) / 8;
    for (int bit = 0; bit < bits_; ++bit)
      std::memcpy(last + static_cast<std::size_t>(bit) * kPlaneBytes,
                  from + bytes(whole) + static_cast<std::size_t>(bit) * used, used);
    codec_kernel::from_planes(last, kGroup, bits_, codes + whole);
  }
  if (!codec_kernel::from_levels(codes, codec_kernel::padded(elements), levels_, step, values, into))
    throw MismatchError(
        fmt::format("{}: a payload with a code beyond {}, the last of {} levels of either sign", codec.name(),
                    2 * levels_, levels_));
}

}  // namespace lockstep
