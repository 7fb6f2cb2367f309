// What a training run's checkpoint calls its files and what is in them, for all who read or write one.
#pragma once

#include <string_view>

namespace lockstep {

inline constexpr const char* kWeightsFile = "model.safetensors";  // parameters and buffers
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

// The optimizer's tensors are called KIND/PARAMETER (optim/state_dict.cc). Every parameter has the first
// kind, those of 16 bits that are trained in f32 the second.
inline constexpr std::string_view kStepKind = "step/";
inline constexpr std::string_view kMasterKind = "master/";

}  // namespace lockstep
