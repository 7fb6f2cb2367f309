// --device: names, and what of them this build has.
#pragma once

#include <string>

namespace lockstep {

// cpu, cuda or cuda:N. Throws UsageError for another text, and for a GPU where this build has no CUDA.
// Whether there is such a GPU is for the workers to find out.
void check_device(const std::string& device);

}  // namespace lockstep
