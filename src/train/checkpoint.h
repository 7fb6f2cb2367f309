// A training run on disk: model.safetensors, the optimizer's state, what the exchange remembers, state.json.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/checkpoint/safetensors.h"
#include "train/optimizer.h"
#include "train/run_plan.h"
#include "train/saved_state.h"

namespace lockstep {

struct TrainState {
  std::int64_t step = 0;  // steps done
  std::int64_t epoch = 0;
  std::optional<double> best_accuracy;
  std::int64_t steps_not_finite = 0;
};

// All that a checkpoint holds, as this worker has it. Collective.
SavedState training_state(const RunPlan& plan, const DataRecord& data, const TrainState& state,
                          Strategy& strategy, TrainOptimizer& optimizer, const SliceOwners& owners);

std::filesystem::path weights_file(const std::filesystem::path& checkpoint);
TensorMap read_weights(const std::filesystem::path& checkpoint);
// Tensor by tensor, to where the model has them.
void load_weights(const std::filesystem::path& checkpoint, torch::nn::Module& model);
// The same of weights that were read; floating-point numbers of another type become the model's.
void load_converted(torch::nn::Module& model, TensorMap weights, const std::string& source);

}  // namespace lockstep
