// libtorch's names for what comm calls by its own.
#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/dtype.h"
#include "lockstep/comm/buffer.h"

namespace lockstep {

// Throws UsageError naming `what` when collectives don't know the type.
DType dtype_of(const torch::Tensor& tensor, const std::string& what);
// Of a type that is trained; none otherwise.
std::optional<DType> float_dtype(const torch::Tensor& tensor);
torch::ScalarType scalar_type_of(DType dtype);

// Throws likewise where it is no device that a group could work on.
Device device_of(const torch::Tensor& tensor, const std::string& what);
torch::Device torch_device(Device device);

// The elements of a dense tensor, in the order of its memory.
Buffer buffer_of(const torch::Tensor& tensor, const std::string& what);

// A tensor on memory that `owner` holds: flat, or of these sizes and strides.
torch::Tensor tensor_at(const Buffer& place, std::shared_ptr<void> owner);
torch::Tensor tensor_at(const Buffer& place, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::shared_ptr<void> owner);

}  // namespace lockstep
