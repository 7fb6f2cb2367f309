// A training run on disk: model.safetensors, the optimizer's state, state.json.
#pragma once

#include <filesystem>
#include <optional>

#include "cli/train_optimizer.h"
#include "cli/train_plan.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/models/models.h"

namespace lockstep::cli {

struct TrainState {
  std::int64_t step = 0;  // steps done
  std::int64_t epoch = 0;
  std::optional<double> best_accuracy;
};

// By rank 0 alone. Gives the checkpoint's folder.
std::filesystem::path save_training(const TrainOptions& options, const DataRecord& data,
                                    const TrainState& state, const Model& model,
                                    const TrainOptimizer::Writer& write_optimizer);

std::filesystem::path weights_file(const std::filesystem::path& checkpoint);
TensorMap read_weights(const std::filesystem::path& checkpoint);
void load_weights(const std::filesystem::path& checkpoint, Model& model);

}  // namespace lockstep::cli
