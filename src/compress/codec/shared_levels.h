// Integers of one scale, which are added up as they are (IntSGD, see compress/shared_int.h): a largest
// magnitude `most`, so many `levels` on either side of zero.
#pragma once

#include <cstdint>
#include <span>

#include "compress/codec/element_random.h"

namespace lockstep::compress {

// Of one byte.
inline constexpr int kMostLevel = 127;

float largest_of(std::span<const float> x);

// to[i] += x[i] / most × levels, rounded up or down at random so that it is right on average.
void add_levels(std::span<const float> x, float most, float levels, const ElementRandom& random,
                std::int8_t* to);

// x[i] = from[i] × most / levels.
void from_levels(const std::int8_t* from, float most, float levels, std::span<float> x);

}  // namespace lockstep::compress
