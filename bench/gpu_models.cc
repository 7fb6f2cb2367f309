// Our models on one GPU, one JSON object a line, with the fields of a PyTorch peer beside it.
//
//   gpu_models resnet50 [batch] [steps]   224 × 224, parameters of bf16, SGD with momentum and f32 masters
//   gpu_models gpt [batch] [steps]        12 blocks, width 768, context 1024, vocabulary 50304, AdamW
//   gpu_models ops                        each fused operation beside its floor: bytes over a copy's speed
// "raw" is the model by itself, "ddp" wrapped in DataParallel, one rank; 8 steps to warm up, then `steps`
// (20).
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

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
#include "lockstep/models/precision.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "models/fused.h"
#include "train/device.h"
#include "train/gpu_memory.h"

namespace {

using namespace lockstep;
using Json = nlohmann::ordered_json;
using torch::Tensor;

constexpr int kWarmUp = 8;

torch::Device gpu() { return find_device("cuda", 0); }
torch::TensorOptions here(torch::ScalarType type) { return torch::TensorOptions().device(gpu()).dtype(type); }

// Milliseconds a call, of `count` behind a few that don't count.
double timed(int count, const std::function<void()>& call) {
  for (int i = 0; i < kWarmUp; ++i) call();
  wait_for_device(gpu());
  const std::int64_t begin = now_ns();
  for (int i = 0; i < count; ++i) call();
  wait_for_device(gpu());
  return static_cast<double>(now_ns() - begin) / 1e6 / count;
}

struct Trained {
  std::shared_ptr<Model> model;
  Tensor data;
  Tensor target;
  double units = 0;  // images or tokens of a step
};

Trained make_trained(bool tokens, std::int64_t batch) {
  Trained made;
  if (tokens) {
    const Tensor ids = torch::randint(0, 50304, {batch, 1025}, here(torch::kLong));
    made = {.model = make_gpt({.blocks = 12,
                               .width = 768,
                               .heads = 12,
                               .context = 1024,
                               .vocabulary = 50304,
                               .head_bias = false}),
            .data = ids.narrow(1, 0, 1024).contiguous(),
            .target = ids.narrow(1, 1, 1024).contiguous(),
            .units = static_cast<double>(batch) * 1024};
  } else {
    made = {.model = make_resnet({.depth = 50, .classes = 1000}),
            .data = torch::randn({batch, 3, 224, 224}, here(torch::kFloat32))
                        .contiguous(torch::MemoryFormat::ChannelsLast),
            .target = torch::randint(0, 1000, {batch}, here(torch::kLong)),
            .units = static_cast<double>(batch)};
  }
  move_model(*made.model, gpu(), false);
  to_low_precision(*made.model, torch::kBFloat16);
  return made;
}

template <class Source>
std::unique_ptr<Optimizer> make_optimizer(bool tokens, Source&& source) {
  if (tokens)
    return std::make_unique<AdamW>(source, AdamWOptions{.lr = 1e-4, .master_weights = MasterWeights::f32});
  return std::make_unique<SGD>(source,
                               SGDOptions{.lr = 0.1, .momentum = 0.9, .master_weights = MasterWeights::f32});
}

void bench_model(const std::string& name, std::int64_t batch, int steps) {
  const bool tokens = name == "gpt";
  for (const std::string mode : {"raw", "ddp"}) {
    const Trained of = make_trained(tokens, batch);
    std::unique_ptr<DataParallel> strategy;
    std::unique_ptr<Optimizer> optimizer;
    std::int64_t parameters = 0;
    for (const Tensor& tensor : of.model->parameters()) parameters += tensor.numel();
    if (mode == "ddp") {
      strategy = std::make_unique<DataParallel>(of.model, init({.device = Device::Kind::cuda}),
                                                StrategyOptions{.check_replicas_every = 0});
      optimizer = make_optimizer(tokens, *strategy);
    } else {
      std::vector<NamedTensor> list;
      for (const auto& entry : of.model->named_parameters()) list.push_back({entry.key(), entry.value()});
      optimizer = make_optimizer(tokens, list);
    }
    Tensor loss;
    const double ms = timed(steps, [&] {
      optimizer->zero_grad();
      loss = cross_entropy(of.model->forward(tokens ? of.data : of.data.to(torch::kBFloat16)), of.target);
      loss.backward();
      optimizer->step();
    });
    const Json row = {{"peer", "lockstep"},
                      {"version", TORCH_VERSION},
                      {"model", name},
                      {"mode", mode},
                      {"batch", batch},
                      {"params", parameters},
                      {"step_ms", ms},
                      {"units_per_s", of.units / ms * 1e3},
                      {"unit", tokens ? "tokens" : "images"},
                      {"peak_bytes", gpu_memory(gpu().index()).peak_bytes},
                      {"loss", loss.item<double>()}};
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  }
}

// Forward and backward of one operation, and the bytes that each moves.
struct Operation {
  std::string name;
  double forward_bytes, backward_bytes;
  std::vector<Tensor> inputs;
  std::function<std::vector<Tensor>()> forward;
};

std::vector<Operation> make_operations() {
  const auto bf16 = here(torch::kBFloat16);
  const auto own = [](const Tensor& tensor) { return tensor.clone().set_requires_grad(true); };
  const auto bytes = [](const Tensor& tensor) { return static_cast<double>(tensor.nbytes()); };
  std::vector<Operation> list;
  for (const auto& [channels, side] :
       {std::pair{64, 112}, {256, 56}, {512, 28}, {1024, 14}, {2048, 7}, {64, 56}}) {
    const Tensor x =
        own(torch::randn({256, channels, side, side}, bf16).contiguous(torch::MemoryFormat::ChannelsLast));
    const Tensor residual = own(x.detach());
    torch::nn::BatchNorm2d norm(channels);
    norm->to(gpu());
    const std::string shape = std::to_string(channels) + " x " + std::to_string(side) + "²";
    const double e = bytes(x);
    list.push_back({"batch_norm_relu " + shape, 3 * e, 5 * e, {x, norm->weight, norm->bias}, [=]() mutable {
                      return std::vector<Tensor>{fused::batch_norm_relu(*norm, x)};
                    }});
    list.push_back({"batch_norm_add_relu " + shape,
                    (4 + 1.0 / 16) * e,
                    (6 + 1.0 / 16) * e,
                    {x, residual, norm->weight, norm->bias},
                    [=]() mutable {
                      return std::vector<Tensor>{fused::batch_norm_add_relu(*norm, x, residual).first};
                    }});
  }
  const Tensor x = own(torch::randn({16384, 768}, bf16));
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({768}));
  torch::nn::Linear same(768, 768), up(768, 3072), qkv(768, 2304);
  for (torch::nn::Module* module :
       {static_cast<torch::nn::Module*>(norm.get()), static_cast<torch::nn::Module*>(same.get()),
        static_cast<torch::nn::Module*>(up.get()), static_cast<torch::nn::Module*>(qkv.get())})
    module->to(gpu(), torch::kBFloat16);
  const double e = bytes(x);
  // With their matrix products: no floor by bytes.
  list.push_back(
      {"linear 768 + add + layer norm", 0, 0, {x, same->weight, same->bias, norm->weight}, [=]() mutable {
         fused::ResidualStream stream(x);
         stream.add(*same, x);
         return std::vector<Tensor>{stream.normed(*norm)};
       }});
  list.push_back({"layer norm", 2 * e, 3 * e, {x, norm->weight, norm->bias}, [=]() mutable {
                    return std::vector<Tensor>{fused::ResidualStream(x).normed(*norm)};
                  }});
  list.push_back({"linear 3072 + gelu", 0, 0, {x, up->weight, up->bias}, [=]() mutable {
                    return std::vector<Tensor>{fused::linear_gelu(*up, x)};
                  }});
  list.push_back({"qkv + attention", 0, 0, {x, qkv->weight, qkv->bias}, [=]() mutable {
                    return std::vector<Tensor>{fused::causal_attention(*qkv, x, {.batch = 16, .heads = 12})};
                  }});
  const Tensor logits = own(torch::randn({16384, 50304}, bf16));
  const Tensor target = torch::randint(0, 50304, {16384}, here(torch::kLong));
  list.push_back({"cross_entropy 50304", bytes(logits), 2 * bytes(logits), {logits}, [=] {
                    return std::vector<Tensor>{cross_entropy(logits, target)};
                  }});
  return list;
}

void bench_operations() {
  const Tensor from = torch::ones({std::int64_t{1} << 28}, here(torch::kFloat32)),
               to = torch::empty_like(from);
  const double bytes_per_ms =
      2.0 * static_cast<double>(from.nbytes()) / timed(20, [&] { Tensor(to).copy_(from); });
  for (const Operation& op : make_operations()) {
    std::vector<Tensor> outputs, ones;
    const double forward_ms = timed(20, [&] { outputs = op.forward(); });
    for (const Tensor& output : outputs) ones.push_back(torch::ones_like(output));
    const double backward_ms = timed(
        20, [&] { torch::autograd::grad(outputs, op.inputs, ones, /*retain_graph=*/true, false, true); });
    Json row = {{"what", op.name}, {"forward_ms", forward_ms}, {"backward_ms", backward_ms}};
    if (op.forward_bytes > 0) {
      row["forward_floor_ms"] = op.forward_bytes / bytes_per_ms;
      row["backward_floor_ms"] = op.backward_bytes / bytes_per_ms;
      row["forward_of_floor"] = forward_ms / (op.forward_bytes / bytes_per_ms);
      row["backward_of_floor"] = backward_ms / (op.backward_bytes / bytes_per_ms);
    }
    row["copy_gbs"] = bytes_per_ms / 1e6;
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  }
}

int run(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words[0];
  const auto number = [&](std::size_t i, std::int64_t otherwise) {
    return words.size() > i ? std::atoll(words[i].c_str()) : otherwise;
  };
  if (what != "ops" && what != "gpt" && what != "resnet50")
    throw UsageError("gpu_models '" + what +
                     "'; accepted: resnet50 [batch] [steps], gpt [batch] [steps], ops");
  set_arithmetic(gpu(), {.deterministic = false, .tf32 = true});
  torch::manual_seed(0);
  if (what == "ops")
    bench_operations();
  else
    bench_model(what, number(1, what == "gpt" ? 16 : 256), static_cast<int>(number(2, 20)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_models: %s\n", error.what());
  return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
}
