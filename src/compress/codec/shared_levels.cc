#include "compress/codec/shared_levels.h"

#include <algorithm>
#include <cmath>

namespace lockstep::compress {

float largest_of(std::span<const float> x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  return most;
}

void add_levels(std::span<const float> x, float most, float levels, const ElementRandom& random,
                std::int8_t* to) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float level = std::floor(x[i] / most * levels + random.uniform(i));
    to[i] = static_cast<std::int8_t>(to[i] + static_cast<int>(std::clamp(level, -levels, levels)));
  }
}

void from_levels(const std::int8_t* from, float most, float levels, std::span<float> x) {
  const float step = most / levels;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(from[i]) * step;
}

}  // namespace lockstep::compress
