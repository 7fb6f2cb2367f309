// Gradients for the tests, and what a codec makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compress/codec/codec.h"

namespace lockstep::testing {

inline constexpr CodecKey kKey{.seed = 3, .step = 41, .subtree = 2, .parameter = 0x1234567890abcdefU};
// None, one, less than a group of 64, odd ones, whole groups and blocks (512), many blocks with a rest.
inline constexpr std::size_t kSizes[] = {0, 1, 7, 63, 64, 65, 511, 512, 513, 1000, 1024, 4097, 70001};

// Normal numbers, a few of which are far larger and a few of which are zeros: as gradients are.
inline std::vector<float> gradient(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.01F);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    const auto kind = random() % 50;
    if (kind == 0) value *= 30;
    if (kind == 1) value = 0;
    if (kind == 2) value = -0.0F;
    if (kind == 3) value *= 1e-6F;
  }
  return values;
}

inline std::vector<std::byte> encoded(const Codec& codec, std::span<const float> values,
                                      const CodecKey& key = kKey) {
  std::vector<std::byte> payload(codec.payload_bytes(values.size()));
  codec.encode(values, key, payload);
  return payload;
}

inline std::vector<float> decoded(const Codec& codec, std::span<const std::byte> payload, std::size_t count) {
  std::vector<float> values(count, 77);
  codec.decode(payload, values);
  return values;
}

// There and back.
inline std::vector<float> sent(const Codec& codec, std::span<const float> values,
                               const CodecKey& key = kKey) {
  return decoded(codec, encoded(codec, values, key), values.size());
}

}  // namespace lockstep::testing
