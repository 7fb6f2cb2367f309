// A model as the arithmetic of plan/memory.h sees it.
#pragma once

#include <torch/nn/module.h>

#include "plan/memory.h"

namespace lockstep {

// Tied parameters count once. A unit is a module that has a number for its name ("blocks.3", "layer4.1"), and
// no such module around it: one of a row of blocks. What is in none of them is one unit more.
ModelSize model_size(const torch::nn::Module& module);

}  // namespace lockstep
