#include "train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "checkpoint/training_files.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "report/run_folder.h"

namespace lockstep {

namespace fs = std::filesystem;

fs::path save_training(const RunPlan& plan, const DataRecord& data, const TrainState& state,
                       const torch::nn::Module& model, const TrainOptimizer::Writer& write_optimizer,
                       const TrainOptimizer::Writer& write_exchange) {
  nlohmann::ordered_json json = {{"format", kStateFormat}, {"step", state.step},
                                 {"epoch", state.epoch},   {"best_accuracy", nullptr},
                                 {"options", plan.recipe}, {"data", to_json(data)}};
  if (state.best_accuracy) json["best_accuracy"] = *state.best_accuracy;
  CheckpointStore store(RunFolder::checkpoints_of(plan.options.out), static_cast<int>(plan.options.keep));
  return store.write(state.step, [&](const fs::path& folder) {
    save_safetensors(folder / kWeightsFile, model_state(model),
                     {{"format", "pt"}, {"threads", std::to_string(plan.options.threads)}});
    write_optimizer(folder);
    write_exchange(folder);
    write_file(folder / "state.json", json.dump(2) + "\n");
  });
}

fs::path weights_file(const fs::path& checkpoint) { return checkpoint / kWeightsFile; }

TensorMap read_weights(const fs::path& checkpoint) {
  return load_safetensors(weights_file(checkpoint)).tensors;
}

void load_weights(const fs::path& checkpoint, torch::nn::Module& model) {
  load_model_state(model, read_weights(checkpoint), weights_file(checkpoint).string());
}

void load_converted(torch::nn::Module& model, TensorMap weights, const std::string& source) {
  for (const auto& [name, own] : model_state(model))
    if (const auto found = weights.find(name);
        found != weights.end() && found->second.is_floating_point() && own.is_floating_point())
      found->second = found->second.to(own.scalar_type());
  load_model_state(model, weights, source);
}

}  // namespace lockstep
