// The methods once more, in f64, from their papers' definitions: nothing here comes from the codecs but the
// key of the random numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "compress/codec/block_codec.h"

namespace lockstep::testing {

inline constexpr std::size_t kReferenceBlock = 512;

// Philox4x32-10 as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

inline std::uint32_t random_word(const codec_kernel::ElementRandom& random, std::uint64_t element) {
  const std::uint64_t counter = element / 64 * 16 + element % 16;
  return philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                 random.salt[0], random.salt[1]},
                {random.key[0], random.key[1]})[element % 64 / 16];
}
// In [0, 1).
inline double drawn(const codec_kernel::ElementRandom& random, std::uint64_t element) {
  return static_cast<double>(random_word(random, element) >> 8) / 16777216.0;
}

template <class Body>
void for_blocks(std::span<const float> values, const Body& body) {
  for (std::size_t begin = 0; begin < values.size(); begin += kReferenceBlock)
    body(begin, values.subspan(begin, std::min(kReferenceBlock, values.size() - begin)));
}

inline double largest_of(std::span<const float> values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  return largest;
}

// Every number of a type of 8 bits, from its definition: (-1)^s * 1.m * 2^(e - bias), or 0.m * 2^(1 - bias)
// for e = 0.
inline std::vector<double> fp8_numbers(int exponent_bits, int mantissa_bits, int bias, double largest) {
  std::vector<double> numbers;
  for (int e = 0; e < 1 << exponent_bits; ++e)
    for (int m = 0; m < 1 << mantissa_bits; ++m) {
      const double fraction = m / std::ldexp(1.0, mantissa_bits);
      const double number = e == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, e - bias);
      if (number <= largest) numbers.push_back(number);
    }
  return numbers;  // ascending; the index is the code, so an even index has an even mantissa
}

inline double nearest_number(const std::vector<double>& numbers, double value) {
  const double magnitude = std::fabs(value);
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  std::size_t best = static_cast<std::size_t>(above - numbers.begin());
  if (best == numbers.size()) return std::copysign(numbers.back(), value);
  if (best > 0) {
    const double up = numbers[best] - magnitude;
    const double down = magnitude - numbers[best - 1];
    if (down < up || (down == up && (best - 1) % 2 == 0)) --best;
  }
  return std::copysign(numbers[best], value);
}

inline std::vector<double> reference_fp8(std::span<const float> values, const std::vector<double>& numbers) {
  std::vector<double> out(values.size());
  for_blocks(values, [&](std::size_t begin, std::span<const float> block) {
    double scale = std::ldexp(1.0, -126);
    while (largest_of(block) / scale > numbers.back()) scale *= 2;
    for (std::size_t i = 0; i < block.size(); ++i)
      out[begin + i] = nearest_number(numbers, block[i] / scale) * scale;
  });
  return out;
}

// The indices of the k largest, ascending: by a stable sort, so that ties go to the lower index.
inline std::vector<std::size_t> reference_topk(std::span<const float> values, std::size_t k) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace lockstep::testing
