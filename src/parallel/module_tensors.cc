#include "parallel/module_tensors.h"

#include <algorithm>
#include <unordered_set>

#include "grad/backward_hooks.h"
#include "lockstep/base/error.h"
#include "parallel/one_copy.h"

namespace lockstep {

std::vector<NamedTensor> trained_in(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined() && entry.value().requires_grad() &&
        seen.insert(entry.value().unsafeGetTensorImpl()).second)
      list.push_back({entry.key(), entry.value()});
  return list;
}

std::vector<NamedTensor> frozen_in(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined() && !entry.value().requires_grad() && entry.value().is_floating_point())
      list.push_back({entry.key(), entry.value()});
  return list;
}

std::vector<NamedTensor> everything_in(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined()) list.push_back({entry.key(), entry.value().detach()});
  for (const auto& entry : module.named_buffers())
    if (entry.value().defined()) list.push_back({entry.key(), entry.value()});
  return list;
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

void refuse_unknown(const std::string& strategy, const torch::nn::Module& module) {
  for (const NamedTensor& parameter : trained_in(module))
    if (parameter.tensor.grad().defined() && !is_hooked(parameter.tensor))
      throw UsageError(
          "parameter '" + parameter.name +
          "' has a gradient, which nobody exchanges: it came since the model was wrapped; make a new " +
          strategy);
}

void refuse_unfrozen(const std::string& strategy, const std::vector<NamedTensor>& frozen) {
  for (const NamedTensor& parameter : frozen)
    if (parameter.tensor.requires_grad() && !is_hooked(parameter.tensor))
      throw UsageError(
          "parameter '" + parameter.name +
          "' was frozen when the model was wrapped and is not any more, so it would not be trained; "
          "unfreeze first, then make a new " +
          strategy);
}

void refuse_gone(const std::string& strategy, const torch::nn::Module& module,
                 const std::vector<NamedTensor>& before) {
  const std::vector<NamedTensor> now = trained_in(module);
  for (const NamedTensor& parameter : before)
    if (std::ranges::none_of(
            now, [&](const NamedTensor& other) { return other.tensor.is_same(parameter.tensor); }))
      throw UsageError("parameter '" + parameter.name +
                       "' is not trained any more, which it was, since the model was wrapped; make a new " +
                       strategy);
}

void leave_one_copy(const std::vector<NamedTensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters)
    if (OneCopy::holds(tensor.data_ptr())) torch::Tensor(tensor).set_data(tensor.detach().clone());
}

}  // namespace lockstep
