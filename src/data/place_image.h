// One image from bytes to the model's numbers: moved, mirrored, normalised in one pass.
#pragma once

#include <cstdint>

#include "lockstep/data/files.h"

namespace lockstep {

struct Placement {
  int down = 0;  // where the image's upper left corner comes to lie in the output; may be negative
  int right = 0;
  bool mirror = false;  // left and right of the output, afterwards
};

// Writes `output` numbers: values[256 c + byte] for channel c; where the image does not reach, the value of
// byte 0. A single channel is repeated.
void place_image(const std::uint8_t* image, const ImageShape& from, const Placement& placement,
                 const float* values, const ImageShape& output, float* out);

}  // namespace lockstep
