#include "train/precision.h"

#include <optional>
#include <utility>

namespace lockstep {
namespace {

torch::Tensor narrowed(const torch::Tensor& tensor, torch::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
}

}  // namespace

void apply_precision(Precision precision, torch::nn::Module& model) {
  if (const torch::ScalarType type = parameter_type(precision); type != torch::kFloat32)
    to_low_precision(model, type);
}

Task in_precision(Task task, Precision precision, torch::Device device) {
  if (precision == Precision::fp32) return task;
  task.forward = [forward = std::move(task.forward), type = parameter_type(precision), device,
                  autocast = precision == Precision::bf16_autocast,
                  as_it_is = task.takes_low_precision](const Batch& batch) {
    std::optional<Autocast> scope;
    if (autocast) scope.emplace(torch::kBFloat16, device);
    Batch inputs = batch;
    inputs.data = narrowed(batch.data, type);
    for (auto& [name, tensor] : inputs.more) tensor = narrowed(tensor, type);
    const torch::Tensor output = forward(inputs);
    return as_it_is && output.is_cuda() ? output : output.to(torch::kFloat32);
  };
  return task;
}

bool keeps_masters(const TrainerOptions& o) {
  return parameter_type(parse_precision(o.precision)) != torch::kFloat32;
}

bool scales_loss(const TrainerOptions& o) {
  return o.loss_scaling == "on" ||
         (o.loss_scaling == "auto" && parse_precision(o.precision) == Precision::fp16);
}

}  // namespace lockstep
