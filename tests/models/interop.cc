// The C++ side of interop_test.py: interop write FOLDER | interop read FOLDER.
//
// `write` makes models and saves for each its state, an input and what came out. `read` loads what Python
// saved in the same form and compares. A line a model tells the largest difference; the exit status is 0 when
// all fit.
#include <ATen/Parallel.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "lockstep/checkpoint/state.h"
#include "lockstep/models/models.h"

namespace lockstep {
namespace {

constexpr const char* kResNets[] = {"resnet18", "resnet34", "resnet50", "resnet18-group"};

std::shared_ptr<Model> make_named(const std::string& name) {
  ModelOptions options;
  if (name.ends_with("-group")) options.resnet.norm = ResNetNorm::group;
  return make_model(name.substr(0, name.find('-')), options);
}

// Statistics as a trained model may have them, so that a mix-up of two of them shows.
void randomise_buffers(Model& model) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_buffers()) {
    if (item.key().ends_with("running_mean")) item.value().normal_(0, 0.1);
    if (item.key().ends_with("running_var")) item.value().uniform_(0.5, 2);
    if (item.key().ends_with("num_batches_tracked")) item.value().fill_(torch::randint(100, {}).item());
  }
}

void write(const std::filesystem::path& folder) {
  for (const std::string name : kResNets) {
    torch::manual_seed(7);
    const auto model = make_named(name);
    save_safetensors(folder / (name + ".fresh"), model_state(*model));
    randomise_buffers(*model);
    save_safetensors(folder / (name + ".safetensors"), model_state(*model));
    TensorMap run{{"input", torch::randn({2, 3, 40, 40})}};
    const torch::NoGradGuard no_grad;
    model->eval();
    run["output"] = model->forward(run["input"]);
    model->train();
    run["train_output"] = model->forward(run["input"]);
    save_safetensors(folder / (name + ".run"), run);
    save_safetensors(folder / (name + ".after"), model_state(*model));
  }
  torch::manual_seed(8);
  const auto gpt = make_gpt({.blocks = 2});
  const torch::NoGradGuard no_grad;
  for (auto& item : gpt->named_parameters()) {  // also what begins at 0 or 1
    item.value().normal_(item.key().find("norm") != std::string::npos ? 1 : 0, 0.1);
  }
  TensorMap run{{"input", torch::randint(0, 256, {2, 48}, torch::kLong)}};
  run["output"] = gpt->forward(run["input"]);
  save_safetensors(folder / "gpt.safetensors", model_state(*gpt));
  save_safetensors(folder / "gpt.run", run);
}

bool read(const std::filesystem::path& folder) {
  bool all_fit = true;
  for (const std::string name : kResNets) {
    const auto model = make_named(name);
    const auto file = folder / (name + ".python");
    load_model_state(*model, load_safetensors(file).tensors, file.string());
    const auto run = load_safetensors(folder / (name + ".python_run")).tensors;
    const torch::NoGradGuard no_grad;
    model->eval();
    const auto output = model->forward(run.at("input"));
    const double difference = (output - run.at("output")).abs().max().item<double>();
    const bool fits = torch::allclose(output, run.at("output"), 1e-5, 1e-5);
    std::printf("%s from Python: largest difference %g of outputs up to %g%s\n", name.c_str(), difference,
                output.abs().max().item<double>(), fits ? "" : ": TOO LARGE");
    all_fit = all_fit && fits;
  }
  return all_fit;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  at::set_num_threads(1);
  if (what == "write") {
    lockstep::write(argv[2]);
    return 0;
  }
  if (what == "read") return lockstep::read(argv[2]) ? 0 : 1;
  std::fprintf(stderr, "usage: interop write|read FOLDER\n");
  return 2;
}
