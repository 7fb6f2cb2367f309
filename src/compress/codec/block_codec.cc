#include "compress/codec/block_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

using codec_kernel::kBlock;

// No method makes more of a block than its elements as bytes, and a scale.
constexpr std::size_t kMostBlockBytes = kBlock + sizeof(float);

}  // namespace

std::size_t BlockCodec::payload_bytes(std::size_t count) const {
  const std::size_t rest = count % kBlock;
  return count / kBlock * block_bytes(kBlock) + (rest == 0 ? 0 : block_bytes(rest));
}

void BlockCodec::do_encode(std::span<const float> values, const CodecKey& key,
                           std::span<std::byte> payload) const {
  const codec_kernel::ElementRandom random = random_of(key);
  const std::size_t stride = block_bytes(kBlock);
  const std::size_t whole = values.size() / kBlock;
  for (std::size_t block = 0; block < whole; ++block)
    encode_block(values.data() + block * kBlock, kBlock, {random, block * kBlock},
                 payload.data() + block * stride);
  const std::size_t rest = values.size() % kBlock;
  if (rest == 0) return;
  alignas(64) float tail[kBlock] = {};
  alignas(64) std::byte bytes[kMostBlockBytes] = {};
  std::copy_n(values.data() + whole * kBlock, rest, tail);
  encode_block(tail, rest, {random, whole * kBlock}, bytes);
  std::memcpy(payload.data() + whole * stride, bytes, block_bytes(rest));
}

void BlockCodec::do_decode(std::span<const std::byte> payload, std::size_t, std::size_t first,
                           std::span<float> values, Into into) const {
  const std::size_t stride = block_bytes(kBlock);
  const std::byte* const from = payload.data() + first / kBlock * stride;
  const std::size_t whole = values.size() / kBlock;
  for (std::size_t block = 0; block < whole; ++block)
    decode_block(from + block * stride, kBlock, values.data() + block * kBlock, into);
  const std::size_t rest = values.size() % kBlock;
  if (rest == 0) return;
  alignas(64) float tail[kBlock] = {};
  alignas(64) std::byte bytes[kMostBlockBytes] = {};
  std::copy_n(values.data() + whole * kBlock, rest, tail);
  std::memcpy(bytes, from + whole * stride, block_bytes(rest));
  decode_block(bytes, rest, tail, into);
  std::copy_n(tail, rest, values.data() + whole * kBlock);
}

void write_scale(float scale, std::byte* payload) { std::memcpy(payload, &scale, sizeof(scale)); }

float read_scale(const std::byte* payload, const Codec& codec) {
  float scale = 0;
  std::memcpy(&scale, payload, sizeof(scale));
  if (scale < 0 || std::isinf(scale))
    throw MismatchError(fmt::format(
        "{}: a payload with the scale {}; scales are finite and not negative, or NaN", codec.name(), scale));
  return scale;
}

Step step_for(double top, int levels) {
  auto step = static_cast<float>(top / levels);
  if (step < FLT_MIN) return {0, 0};
  // What is as large as numbers get would be rounded to beyond them.
  if (std::isinf(step * static_cast<float>(levels))) step = std::nextafter(step, 0.0F);
  return {step, static_cast<float>(1.0 / static_cast<double>(step))};
}

codec_kernel::ElementRandom random_of(const CodecKey& key) {
  RandomStream words(mix_bits(
      stream_seed(key.seed, static_cast<std::uint64_t>(key.step), static_cast<std::uint64_t>(key.subtree)) ^
      mix_bits(key.parameter)));
  const std::uint64_t first = words.next();
  const std::uint64_t second = words.next();
  return {.key = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(first >> 32)},
          .salt = {static_cast<std::uint32_t>(second), static_cast<std::uint32_t>(second >> 32)}};
}

}  // namespace lockstep
