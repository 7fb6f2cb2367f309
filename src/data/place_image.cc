#include "data/place_image.h"

#include <algorithm>

namespace lockstep {

void place_image(const std::uint8_t* image, const ImageShape& from, const Placement& placement,
                 const float* values, const ImageShape& output, float* out) {
  // Columns [begin, end) of the output, before it is mirrored, come from the image.
  const int begin = std::clamp(placement.right, 0, output.width);
  const int end = std::clamp(placement.right + from.width, begin, output.width);
  for (int c = 0; c < output.channels; ++c) {
    const std::uint8_t* const plane =
        image + (from.channels == 1 ? 0 : std::int64_t{c} * from.height * from.width);
    const float* const value = values + std::int64_t{256} * c;
    for (int y = 0; y < output.height; ++y, out += output.width) {
      const int row = y - placement.down;
      if (row < 0 || row >= from.height) {
        std::fill_n(out, output.width, value[0]);
        continue;
      }
      const std::uint8_t* const source = plane + std::int64_t{row} * from.width - placement.right;
      if (placement.mirror) {
        const int last = output.width - 1;
        std::fill_n(out, output.width - end, value[0]);
        for (int x = begin; x < end; ++x) out[last - x] = value[source[x]];
        std::fill_n(out + output.width - begin, begin, value[0]);
      } else {
        std::fill_n(out, begin, value[0]);
        for (int x = begin; x < end; ++x) out[x] = value[source[x]];
        std::fill_n(out + end, output.width - end, value[0]);
      }
    }
  }
}

}  // namespace lockstep
