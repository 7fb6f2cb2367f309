// What training costs on a GPU, one JSON object a line: the fused optimizer beside the memory's speed, and
// whole steps of a model by itself and wrapped in DataParallel, in turns.
//
//   gpu_bench adamw                     AdamW on the parameters of a GPT of 163 M
//   gpu_bench gpt [batch] [steps]       12 blocks, width 768, context 1024, vocabulary 50304, bf16 autocast
//   gpu_bench resnet50 [batch] [steps]  224 × 224, channels last, bf16 autocast
//   gpu_bench graph                     a small GPT, whose step is the host's: plain, and recorded
//   (CapturedLoss)
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/models/cross_entropy.h"
#include "lockstep/models/models.h"
#include "lockstep/observe/histogram.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/train/captured_loss.h"
#include "train/device.h"
#include "train/precision.h"

namespace {

using namespace lockstep;
using Json = nlohmann::ordered_json;

constexpr int kWarmUp = 8;
constexpr int kBlock = 5;  // steps before the other kind has its turn

torch::Device gpu() { return find_device("cuda", 0); }

// Milliseconds a call, of `count` that are given to the device one behind the other.
double timed(int count, const std::function<void()>& call) {
  wait_for_device(gpu());
  const std::int64_t begin = now_ns();
  for (int i = 0; i < count; ++i) call();
  wait_for_device(gpu());
  return static_cast<double>(now_ns() - begin) / 1e6 / count;
}

double median_of_blocks(int blocks, const std::function<void()>& call) {
  timed(kWarmUp, call);
  std::vector<double> ms;
  for (int i = 0; i < blocks; ++i) ms.push_back(timed(kBlock, call));
  return median_of(std::move(ms));
}

std::shared_ptr<Model> make_gpt_of_163m() {
  auto model = make_gpt(
      {.blocks = 12, .width = 768, .heads = 12, .context = 1024, .vocabulary = 50304, .head_bias = false});
  move_model(*model, gpu(), false);
  return model;
}

std::vector<NamedTensor> trained(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  for (const auto& entry : module.named_parameters()) list.push_back({entry.key(), entry.value()});
  return list;
}

std::int64_t elements(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& tensor : module.parameters()) count += tensor.numel();
  return count;
}

void bench_adamw() {
  const torch::NoGradGuard no_grad;
  const auto here = torch::TensorOptions().device(gpu());
  const torch::Tensor from = torch::ones({std::int64_t{1} << 28}, here), to = torch::empty_like(from);
  const double copy_ms = median_of_blocks(8, [&] { torch::Tensor(to).copy_(from); });
  const double bandwidth = 2.0 * static_cast<double>(from.nbytes()) / copy_ms * 1e3;
  const auto run = [&](const char* precision, double bytes, const std::shared_ptr<Model>& model,
                       MasterWeights masters) {
    const std::int64_t count = elements(*model);
    for (torch::Tensor& parameter : model->parameters())
      parameter.mutable_grad() = torch::randn_like(parameter);
    AdamW optimizer(trained(*model), {.lr = 1e-4, .master_weights = masters});
    const double ms = median_of_blocks(8, [&] { optimizer.step(); });
    const double floor = static_cast<double>(count) * bytes / bandwidth * 1e3;
    const std::int64_t begin = now_ns();
    optimizer.step();
    const double host_ms = static_cast<double>(now_ns() - begin) / 1e6;
    wait_for_device(gpu());
    const Json row = {{"what", "adamw"},    {"precision", precision},     {"params", count},
                      {"ms", ms},           {"floor_ms", floor},          {"of_floor", ms / floor},
                      {"host_ms", host_ms}, {"copy_gbs", bandwidth / 1e9}};
    std::printf("%s\n", row.dump().c_str());
  };
  run("fp32", 28, make_gpt_of_163m(), MasterWeights::none);
  const auto narrow = make_gpt_of_163m();
  to_low_precision(*narrow, torch::kBFloat16);
  run("bf16 with masters", 28, narrow, MasterWeights::f32);
}

// A model and what trains it.
struct Trained {
  std::shared_ptr<Model> model;
  Batch batch;
  double units = 0;  // samples or tokens of a step
  bool adamw = false;
};

Trained make_trained(const std::string& name, std::int64_t batch) {
  const auto here = torch::TensorOptions().device(gpu());
  if (name == "gpt") {
    const torch::Tensor ids = torch::randint(0, 50304, {batch, 1025}, here.dtype(torch::kLong));
    return {
        .model = make_gpt_of_163m(),
        .batch = {.data = ids.narrow(1, 0, 1024).contiguous(), .target = ids.narrow(1, 1, 1024).contiguous()},
        .units = static_cast<double>(batch) * 1024,
        .adamw = true};
  }
  auto model = make_resnet({.depth = 50, .classes = 1000});
  move_model(*model, gpu(), true);
  const Batch made{.data = torch::randn({batch, 3, 224, 224}, here),
                   .target = torch::randint(0, 1000, {batch}, here.dtype(torch::kLong))};
  return {.model = std::move(model), .batch = moved(made, gpu(), true), .units = static_cast<double>(batch)};
}

template <class Source>
std::unique_ptr<Optimizer> make_optimizer_for(const Trained& of, Source&& source) {
  if (of.adamw) return std::make_unique<AdamW>(source, AdamWOptions{.lr = 1e-4});
  return std::make_unique<SGD>(source, SGDOptions{.lr = 0.1, .momentum = 0.9});
}

void bench_steps_of(const std::string& name, std::int64_t batch, int steps) {
  const Trained bare = make_trained(name, batch), wrapped = make_trained(name, batch);
  const auto step = [](const Trained& of, Optimizer& optimizer) {
    optimizer.zero_grad();
    torch::Tensor output;
    {
      const Autocast scope(torch::kBFloat16, gpu());
      output = of.model->forward(of.batch.data);
    }
    cross_entropy(output, of.batch.target).backward();
    optimizer.step();
  };
  const auto bare_optimizer = make_optimizer_for(bare, trained(*bare.model));
  DataParallel strategy(wrapped.model, init({.device = Device::Kind::cuda}), {.check_replicas_every = 0});
  const auto optimizer = make_optimizer_for(wrapped, strategy);
  const auto run_bare = [&] { step(bare, *bare_optimizer); };
  const auto run_wrapped = [&] { step(wrapped, *optimizer); };
  timed(kWarmUp, run_bare);
  timed(kWarmUp, run_wrapped);
  std::vector<double> bare_ms, wrapped_ms;
  for (int done = 0; done < steps; done += kBlock) {
    bare_ms.push_back(timed(kBlock, run_bare));
    wrapped_ms.push_back(timed(kBlock, run_wrapped));
  }
  const double alone = median_of(bare_ms), with = median_of(wrapped_ms);
  const Json row = {{"what", "step"},
                    {"model", name},
                    {"batch", batch},
                    {"params", elements(*bare.model)},
                    {"bare_ms", alone},
                    {"wrapped_ms", with},
                    {"wrapping_percent", 100 * (with / alone - 1)},
                    {"units_per_s", wrapped.units / with * 1e3},
                    {"unit", name == "gpt" ? "tokens" : "images"},
                    {"device", device_figures(gpu(), {.tf32 = true})}};
  std::printf("%s\n", row.dump().c_str());
}

void bench_graph() {
  const std::int64_t batch = 4, context = 128;
  const auto model = make_gpt({.blocks = 6, .width = 256, .heads = 8, .context = context});
  move_model(*model, gpu(), false);
  const auto longs = torch::TensorOptions().device(gpu()).dtype(torch::kLong);
  const torch::Tensor x = torch::randint(0, 256, {batch, context}, longs), y = torch::randint_like(x, 256);
  const auto function = [&](const std::vector<torch::Tensor>& in) {
    return cross_entropy(model->forward(in[0]), in[1]);
  };
  DataParallel strategy(model, init({.device = Device::Kind::cuda}), {.check_replicas_every = 0});
  AdamW optimizer(strategy, {.lr = 1e-4});
  CapturedLoss recorded(model, function);
  const auto step = [&](const CapturedLoss::Function& loss) {
    optimizer.zero_grad();
    loss({x, y}).backward();
    optimizer.step();
  };
  const double plain_ms = median_of_blocks(8, [&] { step(function); });
  const double recorded_ms = median_of_blocks(8, [&] { step(std::ref(recorded)); });
  const Json row = {{"what", "graph"},
                    {"params", elements(*model)},
                    {"tokens", batch * context},
                    {"plain_ms", plain_ms},
                    {"recorded_ms", recorded_ms}};
  std::printf("%s\n", row.dump().c_str());
}

int run(const std::vector<std::string>& words) {
  const auto number = [&](std::size_t i, std::int64_t otherwise) {
    return words.size() > i ? std::atoll(words[i].c_str()) : otherwise;
  };
  set_arithmetic(gpu(), {.deterministic = false, .tf32 = true});
  torch::manual_seed(0);
  const std::string what = words.empty() ? "all" : words[0];
  const bool all = what == "all";
  if (!all && what != "adamw" && what != "gpt" && what != "resnet50" && what != "graph")
    throw UsageError("gpu_bench '" + what +
                     "'; accepted: all, adamw, graph, gpt [batch] [steps], resnet50 [batch] [steps]");
  const auto steps = static_cast<int>(number(2, 30));
  if (all || what == "adamw") bench_adamw();
  if (all || what == "graph") bench_graph();
  if (all || what == "gpt") bench_steps_of("gpt", number(1, 16), steps);
  if (all || what == "resnet50") bench_steps_of("resnet50", number(1, 256), steps);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_bench: %s\n", error.what());
  return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
}
