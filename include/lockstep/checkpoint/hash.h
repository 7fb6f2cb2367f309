// SHA-256 of a model.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "lockstep/checkpoint/sha256.h"

namespace lockstep {

// Of every parameter's and buffer's name, dtype, shape and bytes, in name order, 64 hexadecimal digits: equal
// for two models that have the same bits, whatever their memory layout, device or order of registration.
std::string params_sha256(const torch::nn::Module& module);

}  // namespace lockstep
