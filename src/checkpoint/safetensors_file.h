// The header of a safetensors file on disk.
#pragma once

#include "checkpoint/file.h"
#include "checkpoint/safetensors_header.h"

namespace lockstep {

// Of a file that nothing was read from yet; the tensors' bytes come next in it. Throws UsageError with what
// is wrong but without the file's name, SystemError.
SafetensorsHeader read_header(InputFile& input);

}  // namespace lockstep
