// Training in 16 bits: in which type a model computes, and what stays in f32.
//
// Two ways, which don't mix:
//
// 1. Parameters of 16 bits. Gradients are, and travel, in 16 bits too; losses are computed in f32.
//
//   lockstep::to_low_precision(*model, torch::kBFloat16);  // before it is wrapped
//   lockstep::DataParallel ddp(model, world);
//   lockstep::AdamW optimizer(ddp, {.lr = 5e-4, .master_weights = lockstep::MasterWeights::f32});
//   auto out = model->forward(x.to(torch::kBFloat16)).to(torch::kFloat32);  // indices (tokens) stay integers
//   loss(out, y).backward();
//
// 2. Parameters of f32. Operations that gain by it cast their inputs; gradients are f32.
//
//   {
//     const lockstep::Autocast scope(torch::kBFloat16);
//     out = model->forward(x).to(torch::kFloat32);
//   }
//   loss(out, y).backward();  // outside of the scope
//
// f16 has a small range: its gradients want a loss scaler (optim/grad_scaler.h). docs/precision.md has what
// each way costs, and `lockstep train --precision` and TrainerOptions::precision do both.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>

namespace lockstep {

enum class Precision : std::uint8_t {
  fp32,
  bf16,           // parameters of bf16, master weights
  fp16,           // parameters of f16, master weights and a loss scaler
  bf16_autocast,  // parameters of f32, computed with in bf16
};
Precision parse_precision(const std::string& name);  // throws UsageError that lists precision_names.h's
// Of the parameters: f32, bf16 or f16.
torch::ScalarType parameter_type(Precision precision);

// Turns the module's floating-point parameters and buffers, of all its sub-modules, to bf16 or f16, in place.
// Batch norm, and whatever else has running statistics ("running_mean"), keeps its own in f32: statistics
// that move by a tenth of a difference would stand still in 16 bits, and libtorch's kernels take 16-bit
// activations with f32 weights there. Layer and group norm, whose kernels of 1.13 do not when it comes to
// backward, become 16-bit like the rest; they add up in f32 inside. Throws UsageError for another type.
void to_low_precision(torch::nn::Module& module, torch::ScalarType type);

// What this libtorch can't compute in that type on the processor, or another device: "matrix products,
// convolutions"; empty: nothing that ResNet or GPT need. It is tried out on tiny tensors.
std::string missing_kernels(torch::ScalarType type, torch::Device device = torch::kCPU);

// While it lives, this thread's operations on the processor, or on GPUs where `device` is one, cast their
// inputs as libtorch's autocast says. Scopes may be nested. Weights that were cast are kept until the
// outermost ends, so change no weights inside.
class Autocast {
 public:
  explicit Autocast(torch::ScalarType type = torch::kBFloat16, torch::Device device = torch::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType on_;
  bool enabled_before_;
  torch::ScalarType type_before_;
};

}  // namespace lockstep
