// What TrainerOptions::precision makes of a model and its task.
#pragma once

#include <torch/nn/module.h>

#include "lockstep/models/precision.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

// Before the model is wrapped.
void apply_precision(Precision precision, torch::nn::Module& model);
// Its forward takes inputs of the model's type, or runs under autocast, and gives f32: so do loss and
// metrics.
Task in_precision(Task task, Precision precision, torch::Device device = torch::kCPU);

bool keeps_masters(const TrainerOptions& options);
bool scales_loss(const TrainerOptions& options);

}  // namespace lockstep
