// Element types of safetensors files and of libtorch.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <span>
#include <string>

#include "checkpoint/safetensors_header.h"

namespace lockstep {

torch::ScalarType to_torch(FileDType dtype);
// Throws UsageError, with the tensor's name, for what safetensors files don't hold.
FileDType to_file(const torch::Tensor& tensor, const std::string& name);
// All bytes of a contiguous tensor.
inline std::span<std::byte> tensor_bytes(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}
// Throws UsageError where a byte of a BOOL is neither 0 nor 1: that is undefined behaviour in whoever reads
// it.
void check_bools(const torch::Tensor& tensor, const std::string& name);

}  // namespace lockstep
