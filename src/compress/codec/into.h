// What becomes of numbers that were decoded.
#pragma once

namespace lockstep {

enum class Into {
  overwrite,  // values[i] = x
  add         // values[i] += x
};

}  // namespace lockstep
