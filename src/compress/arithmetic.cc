#include "compress/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lockstep::compress {

bool all_finite(std::span<const float> x) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t bad = 0;
  for (const float value : x)
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent);
  return bad == 0;
}

void scale(std::span<float> x, float factor) {
  if (factor == 1) return;
  for (float& value : x) value *= factor;
}

void add_owed(std::span<float> x, float factor, std::span<float> owed) {
  float* const a = x.data();
  float* const b = owed.data();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = a[i] * factor - b[i];
    a[i] = value;
    b[i] = -value;
  }
}

void add(std::span<float> x, std::span<const float> y) {
  float* const a = x.data();
  const float* const b = y.data();
  for (std::size_t i = 0; i < x.size(); ++i) a[i] += b[i];
}

void fill(std::span<float> x, float value) { std::fill(x.begin(), x.end(), value); }

double squares(std::span<const float> x) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= x.size(); i += 8)
    for (std::size_t k = 0; k < 8; ++k)
      sums[k] += static_cast<double>(x[i + k]) * static_cast<double>(x[i + k]);
  for (; i < x.size(); ++i) sums[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace lockstep::compress
