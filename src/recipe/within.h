// A flag's number, and what it may be.
#pragma once

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

// Throws UsageError that names the flag. NaN is within nothing.
template <class T>
void within(const char* flag, T value, T least, T most, const char* besides = "") {
  if (!(value >= least && value <= most))
    throw UsageError(
        fmt::format("{} '{}' is out of range; accepted: {} to {}{}", flag, value, least, most, besides));
}

}  // namespace lockstep
