#include "train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "checkpoint/torch_types.h"
#include "checkpoint/training_files.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/parallel/construction.h"
#include "train/exchange_state.h"
#include "train/read_state.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

void read_into(const StoredTensors& stored, const std::string& name, const torch::Tensor& tensor) {
  stored.read(name, 0, static_cast<std::uint64_t>(tensor.numel()),
              {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
  check_bools(tensor, name);
}

}  // namespace

SavedState training_state(const RunPlan& plan, const DataRecord& data, const Metadata& facts,
                          const TrainState& state, Strategy& strategy, TrainOptimizer& optimizer,
                          const SliceOwners& owners) {
  SavedState saved;
  Metadata metadata = facts;
  metadata["format"] = "pt";
  metadata["threads"] = std::to_string(plan.options.threads);
  saved.sets[kWeightsFile] = model_runs(strategy, owners, std::move(metadata));
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

WeightsReader::WeightsReader(const fs::path& checkpoint, const torch::nn::Module& model)
    : stored_(checkpoint, kWeightsFile), model_(model) {
  TensorMap forms;  // without memory
  for (const auto& [name, form] : stored_.forms())
    forms.emplace(name, torch::empty(form.shape, torch::dtype(to_torch(form.dtype)).device(torch::kMeta)));
  check_model_state(model, forms, weights_file(checkpoint).string());
}

void WeightsReader::read() {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, own] : model_state(model_)) {
    if (!has_memory(own) || !done_.insert(name).second) continue;
    const bool in_place = own.is_cpu() && own.is_contiguous();
    const torch::Tensor tensor = in_place ? own : torch::empty(own.sizes(), torch::dtype(own.scalar_type()));
    read_into(stored_, name, tensor);
    if (!in_place) torch::Tensor(own).copy_(tensor);
  }
}

void load_converted(torch::nn::Module& model, const TensorMap& weights, const std::string& source) {
  const TensorMap state = model_state(model);
  TensorMap forms = weights;
  for (auto& [name, form] : forms)
    if (const auto own = state.find(name);
        own != state.end() && form.is_floating_point() && own->second.is_floating_point())
      form = torch::empty(form.sizes(), torch::dtype(own->second.scalar_type()).device(torch::kMeta));
  check_model_state(model, forms, source);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, own] : state)
    if (has_memory(own)) torch::Tensor(own).copy_(weights.at(name));
}

void begin_weights(const RunPlan& plan, torch::nn::Module& model, const Group& world) {
  constexpr const char* kWhat = "reading the weights";
  if (!plan.checkpoint.empty()) {
    std::optional<WeightsReader> reader;
    run_on_leader(world, kWhat, [&] { reader.emplace(plan.checkpoint, model); });
    for_each_unit(model, [&](torch::nn::Module&) { run_on_leader(world, kWhat, [&] { reader->read(); }); });
  } else if (!plan.init.empty()) {  // of a run that may go on meanwhile, and may be of another precision
    TensorMap weights;
    std::string source;
    run_on_leader(world, kWhat, [&] {
      use_checkpoint(plan.options.init, [&](const fs::path& found) {
        weights = read_weights(found);
        source = weights_file(found).string();
      });
    });
    for_each_unit(model, [&](torch::nn::Module&) {
      run_on_leader(world, kWhat, [&] { load_converted(model, weights, source); });
    });
  }
}

}  // namespace lockstep
