// libtorch's names for what comm calls by its own.
#pragma once

#include <torch/types.h>

#include <string>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/buffer.h"

namespace lockstep {

// Throws UsageError naming `what` when collectives don't know the type.
DType dtype_of(const torch::Tensor& tensor, const std::string& what);
torch::ScalarType scalar_type_of(DType dtype);

// The elements of a dense tensor, in the order of its memory.
Buffer buffer_of(const torch::Tensor& tensor, const std::string& what);

}  // namespace lockstep
