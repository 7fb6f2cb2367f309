// SHA-256 of a model.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "lockstep/checkpoint/sha256.h"

namespace lockstep {

// Of every parameter's and buffer's name, dtype, shape and bytes, in name order, 64 hexadecimal digits: equal
// for two models that have the same bits, whatever their memory layout, device or order of registration.
// `before`: called with each of them before it is read, in name order; may be empty.
std::string params_sha256(const torch::nn::Module& module,
                          const std::function<void(const torch::Tensor& tensor)>& before = {});

}  // namespace lockstep
