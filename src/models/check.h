// Options of models are checked before anything is built.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

inline void check_positive(const char* model, const char* option, std::int64_t value) {
  if (value < 1) {
    throw UsageError(std::string(model) + ": " + option + " = " + std::to_string(value) +
                     "; accepted: 1 or more");
  }
}

}  // namespace lockstep
