#include "cli/train_checkpoint.h"

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "report/run_folder.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

fs::path save_training(const TrainOptions& options, const DataRecord& data, const TrainState& state,
                       const Model& model, const TrainOptimizer::Writer& write_optimizer) {
  nlohmann::ordered_json json = {{"format", kStateFormat},      {"step", state.step},
                                 {"epoch", state.epoch},        {"best_accuracy", nullptr},
                                 {"options", to_json(options)}, {"data", to_json(data)}};
  if (state.best_accuracy) json["best_accuracy"] = *state.best_accuracy;
  CheckpointStore store(RunFolder::checkpoints_of(options.out), static_cast<int>(options.keep));
  return store.write(state.step, [&](const fs::path& folder) {
    save_safetensors(folder / "model.safetensors", model_state(model),
                     {{"format", "pt"}, {"threads", std::to_string(options.threads)}});
    write_optimizer(folder);
    write_file(folder / "state.json", json.dump(2) + "\n");
  });
}

fs::path weights_file(const fs::path& checkpoint) { return checkpoint / "model.safetensors"; }

TensorMap read_weights(const fs::path& checkpoint) {
  return load_safetensors(weights_file(checkpoint)).tensors;
}

void load_weights(const fs::path& checkpoint, Model& model) {
  load_model_state(model, read_weights(checkpoint), weights_file(checkpoint).string());
}

}  // namespace lockstep::cli
