// A training run on disk: model.safetensors, the optimizer's state, what the exchange remembers, state.json.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "checkpoint/stored_tensors.h"
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

// All that a checkpoint holds, as this worker has it. `facts`: what the run computes with. Collective.
SavedState training_state(const RunPlan& plan, const DataRecord& data, const Metadata& facts,
                          const TrainState& state, Strategy& strategy, TrainOptimizer& optimizer,
                          const SliceOwners& owners);

std::filesystem::path weights_file(const std::filesystem::path& checkpoint);
TensorMap read_weights(const std::filesystem::path& checkpoint);
// A checkpoint's weights, tensor by tensor to where the model has them. Throws where they don't fit it.
class WeightsReader {
 public:
  // The model outlives it.
  WeightsReader(const std::filesystem::path& checkpoint, const torch::nn::Module& model);
  // Those of tensors that have memory now and had none before, in a model whose units are in parts but for
  // one (for_each_unit of parallel/construction.h): so each is read once.
  void read();

 private:
  StoredTensors stored_;
  const torch::nn::Module& model_;
  std::set<std::string> done_;
};
// Weights that were read, to what has memory of the model; floating-point numbers of another type become the
// model's.
void load_converted(torch::nn::Module& model, const TensorMap& weights, const std::string& source);
// Those that a run begins with, where they are not the model's own: rank 0's, so that only its machine needs
// the checkpoint; the others get them when the model is wrapped, or unit by unit. Collective.
void begin_weights(const RunPlan& plan, torch::nn::Module& model, const Group& world);

}  // namespace lockstep
