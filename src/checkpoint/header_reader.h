// Reads the JSON of a safetensors header event by event: nothing is built that the format has no place for,
// and a key that comes twice is seen.
#pragma once

#include <string_view>

#include "checkpoint/safetensors_header.h"

namespace lockstep {

// Tensors in the order of the text, offsets not yet checked against each other. Throws UsageError.
SafetensorsHeader read_header_json(std::string_view json);

}  // namespace lockstep
