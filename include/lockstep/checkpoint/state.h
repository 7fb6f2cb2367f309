// A model's parameters and buffers by name, and back.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

// Every parameter and buffer under the name that Python's state_dict gives it. The tensors are the model's
// own memory, detached: save them before the next step changes them.
TensorMap model_state(const torch::nn::Module& module);

// Copies `state` into the model. Names, shapes and dtypes must be exactly the model's; otherwise nothing is
// copied and a UsageError names the first difference, with both sides, and says how many there are. `source`
// is what the message calls the state: the file it came from.
void load_model_state(torch::nn::Module& module, const TensorMap& state, const std::string& source = "state");
// Just the look: of the tensors only names, shapes and dtypes count.
void check_model_state(const torch::nn::Module& module, const TensorMap& state,
                       const std::string& source = "state");

// What the bits of a run depend on besides its model and its data: how many threads the calling thread's
// libtorch computes with (threads), its version (libtorch), for which instructions of the processor it has
// chosen kernels (instructions), and the library of matrix products under it, where that says so (blas).
// Saved with the weights it can be compared when they are loaded:
//   save_safetensors(file, model_state(model), arithmetic_facts());
Metadata arithmetic_facts();
// The facts that `metadata` tells otherwise: "threads = 2, and here it is 1"; empty: none.
std::string other_arithmetic(const Metadata& metadata, const Metadata& here = arithmetic_facts());
// False when `metadata` tells of other facts than those of the calling thread; then one line of the log warns
// that the run's bits may differ from here on. `source` is what the line calls the metadata: the file it came
// from.
bool same_arithmetic(const Metadata& metadata, const std::string& source);

}  // namespace lockstep
