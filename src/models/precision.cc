#include "lockstep/models/precision.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <functional>
#include <vector>

#include "base/amx.h"
#include "lockstep/base/error.h"
#include "lockstep/models/precision_names.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;

// A program that computes in 16 bits links this file. oneDNN settles its instructions when it is first used,
// which may be by a norm in f32 that a static variable is made with: so before all of those.
[[gnu::constructor(200)]] void settle_amx_for_models() {
  avoid_undescribed_amx(below_amx(TORCH_VERSION_MAJOR));
}

// Whose parameters and buffers stay f32.
bool has_statistics(const nn::Module& module) {
  return module.named_buffers(/*recurse=*/false).contains("running_mean");
}

// libtorch 2.4 has one function for all devices, and marks those for one as old.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
bool is_enabled(torch::DeviceType on) { return at::autocast::is_autocast_enabled(on); }
torch::ScalarType type_now(torch::DeviceType on) { return at::autocast::get_autocast_dtype(on); }
void set(torch::DeviceType on, bool enabled, torch::ScalarType type) {
  at::autocast::set_autocast_enabled(on, enabled);
  at::autocast::set_autocast_dtype(on, type);
}
#else
bool is_enabled(torch::DeviceType on) {
  return on == torch::kCUDA ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled();
}
torch::ScalarType type_now(torch::DeviceType on) {
  return on == torch::kCUDA ? at::autocast::get_autocast_gpu_dtype() : at::autocast::get_autocast_cpu_dtype();
}
void set(torch::DeviceType on, bool enabled, torch::ScalarType type) {
  if (on == torch::kCUDA) {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(type);
  } else {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
  }
}
#endif

}  // namespace

Precision parse_precision(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kPrecisionNames); ++i)
    if (name == kPrecisionNames[i]) return static_cast<Precision>(i);
  throw UsageError(fmt::format("precision '{}'; accepted: {}", name, fmt::join(kPrecisionNames, ", ")));
}

torch::ScalarType parameter_type(Precision precision) {
  return precision == Precision::bf16   ? torch::kBFloat16
         : precision == Precision::fp16 ? torch::kFloat16
                                        : torch::kFloat32;
}

void to_low_precision(nn::Module& module, torch::ScalarType type) {
  if (type != torch::kBFloat16 && type != torch::kFloat16)
    throw UsageError(fmt::format("to_low_precision: type {}; accepted: BFloat16, Half", c10::toString(type)));
  const torch::NoGradGuard no_grad;
  const auto convert = [&](nn::Module& one) {
    if (has_statistics(one)) return;
    for (const auto& list : {one.named_parameters(/*recurse=*/false), one.named_buffers(/*recurse=*/false)})
      for (const auto& entry : list)
        if (torch::Tensor tensor = entry.value(); tensor.defined() && tensor.is_floating_point())
          tensor.set_data(tensor.to(type));
  };
  convert(module);  // modules() wants a module that a shared_ptr owns, to name itself
  for (const auto& one : module.modules(/*include_self=*/false)) convert(*one);
}

std::string missing_kernels(torch::ScalarType type, torch::Device device) {
  const auto ones = [&](at::IntArrayRef sizes) {
    return torch::ones(sizes, torch::TensorOptions().dtype(type).device(device)).set_requires_grad(true);
  };
  const struct {
    const char* name;
    std::function<torch::Tensor()> run;
  } needed[] = {{"matrix products",
                 [&] {
                   return at::addmm(ones({2}), ones({2, 2}), ones({2, 2}));
                 }},
                {"convolutions",
                 [&] {
                   return at::conv2d(ones({1, 1, 3, 3}), ones({1, 1, 3, 3}));
                 }},
                {"softmax",
                 [&] {
                   return ones({2, 2}).softmax(-1);
                 }},
                {"gelu", [&] { return at::gelu(ones({2})); }}};
  std::vector<std::string> missing;
  for (const auto& one : needed) try {
      one.run().sum().backward();
    } catch (const c10::Error&) {
      missing.emplace_back(one.name);
    }
  return fmt::format("{}", fmt::join(missing, ", "));
}

Autocast::Autocast(torch::ScalarType type, torch::Device device)
    : on_(device.is_cuda() ? torch::kCUDA : torch::kCPU),
      enabled_before_(is_enabled(on_)),
      type_before_(type_now(on_)) {
  if (type != torch::kBFloat16 && !(on_ == torch::kCUDA && type == torch::kFloat16))
    throw UsageError(fmt::format("Autocast: type {}; accepted: BFloat16, the one that the processor has",
                                 c10::toString(type)));
  at::autocast::increment_nesting();
  set(on_, true, type);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set(on_, enabled_before_, type_before_);
}

}  // namespace lockstep
