#include "train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "checkpoint/stored_tensors.h"
#include "checkpoint/torch_types.h"
#include "checkpoint/training_files.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "train/exchange_state.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

void read_into(const StoredTensors& stored, const std::string& name, const torch::Tensor& tensor) {
  stored.read(name, 0, static_cast<std::uint64_t>(tensor.numel()),
              {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
  check_bools(tensor, name);
}

}  // namespace

SavedState training_state(const RunPlan& plan, const DataRecord& data, const TrainState& state,
                          Strategy& strategy, TrainOptimizer& optimizer, const SliceOwners& owners) {
  SavedState saved;
  saved.sets[kWeightsFile] =
      model_runs(strategy, owners, {{"format", "pt"}, {"threads", std::to_string(plan.options.threads)}});
  optimizer.save(saved, owners, strategy.group());
  add_exchange(saved, strategy.exchange());
  nlohmann::ordered_json json = {{"format", kStateFormat},
                                 {"step", state.step},
                                 {"epoch", state.epoch},
                                 {"best_accuracy", nullptr},
                                 {"options", plan.recipe},
                                 {"data", to_json(data)},
                                 {"steps_not_finite", state.steps_not_finite}};
  if (state.best_accuracy) json["best_accuracy"] = *state.best_accuracy;
  saved.files.emplace_back("state.json",
                           [text = json.dump(2) + "\n"](const fs::path& file) { write_file(file, text); });
  return saved;
}

fs::path weights_file(const fs::path& checkpoint) { return checkpoint / kWeightsFile; }

TensorMap read_weights(const fs::path& checkpoint) {
  const StoredTensors stored(checkpoint, kWeightsFile);
  TensorMap weights;
  for (const auto& [name, form] : stored.forms()) {
    const torch::Tensor tensor = torch::empty(form.shape, to_torch(form.dtype));
    read_into(stored, name, tensor);
    weights.emplace(name, tensor);
  }
  return weights;
}

void load_weights(const fs::path& checkpoint, torch::nn::Module& model) {
  const StoredTensors stored(checkpoint, kWeightsFile);
  TensorMap forms;  // without memory
  for (const auto& [name, form] : stored.forms())
    forms.emplace(name, torch::empty(form.shape, torch::dtype(to_torch(form.dtype)).device(torch::kMeta)));
  check_model_state(model, forms, weights_file(checkpoint).string());
  const torch::NoGradGuard no_grad;
  for (const auto& [name, own] : model_state(model)) {
    const bool in_place = own.is_cpu() && own.is_contiguous();
    const torch::Tensor tensor = in_place ? own : torch::empty(own.sizes(), torch::dtype(own.scalar_type()));
    read_into(stored, name, tensor);
    if (!in_place) torch::Tensor(own).copy_(tensor);
  }
}

void load_converted(torch::nn::Module& model, TensorMap weights, const std::string& source) {
  for (const auto& [name, own] : model_state(model))
    if (const auto found = weights.find(name);
        found != weights.end() && found->second.is_floating_point() && own.is_floating_point())
      found->second = found->second.to(own.scalar_type());
  load_model_state(model, weights, source);
}

}  // namespace lockstep
