// Element types of safetensors files and of libtorch.
#pragma once

#include <torch/types.h>

#include <string>

#include "checkpoint/safetensors_header.h"

namespace lockstep {

torch::ScalarType to_torch(FileDType dtype);
// Throws UsageError, with the tensor's name, for what safetensors files don't hold.
FileDType to_file(const torch::Tensor& tensor, const std::string& name);
// Throws UsageError where a byte of a BOOL is neither 0 nor 1: that is undefined behaviour in whoever reads
// it.
void check_bools(const torch::Tensor& tensor, const std::string& name);

}  // namespace lockstep
