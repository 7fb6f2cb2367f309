#include "lockstep/comm/lanes.h"

#include <algorithm>
#include <bit>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

LaneRange lanes_of(int worker, int workers, int lanes) {
  if (lanes < 1) throw UsageError("lanes = " + std::to_string(lanes) + "; accepted: 1 or more");
  if (workers < 1 || workers > lanes)
    throw UsageError(std::to_string(workers) + " workers for " + std::to_string(lanes) +
                     " lanes; accepted: 1 to " + std::to_string(lanes) + " workers, or more lanes");
  if (worker < 0 || worker >= workers)
    throw UsageError("worker " + std::to_string(worker) + " of " + std::to_string(workers) +
                     "; accepted: 0 to " + std::to_string(workers - 1));
  // Down both trees at once: that of the workers (left part: the largest power of two below their number)
  // and that of the lanes, padded to a power of two.
  int first = 0;
  int span = static_cast<int>(std::bit_ceil(static_cast<unsigned>(lanes)));
  while (workers > 1) {
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(workers - 1)));
    span /= 2;
    if (worker < left) {
      workers = left;
    } else {
      worker -= left;
      workers -= left;
      first += span;
    }
  }
  return {.first = first, .count = std::clamp(lanes - first, 0, span), .span = span};
}

}  // namespace lockstep
