// Checks of optimizer options, torch-free: a message names the optimizer, the option, its value and the
// range.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

inline void require(bool accepted, const std::string& whose, const char* option, double value,
                    const char* range) {
  if (!accepted) throw UsageError(fmt::format("{}: {} is {}; accepted: {}", whose, option, value, range));
}

inline void require_at_least_zero(const std::string& whose, const char* option, double value) {
  require(std::isfinite(value) && value >= 0, whose, option, value, "0 or more, finite");
}

}  // namespace lockstep
