// The least multiple of a number that is not less than another.
#pragma once

namespace lockstep {

template <class T>
constexpr T round_up(T value, T to) {
  return (value + to - 1) / to * to;
}

}  // namespace lockstep
