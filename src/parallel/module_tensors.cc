#include "parallel/module_tensors.h"

#include <algorithm>
#include <unordered_set>

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

void refuse_unknown(const std::string& strategy, const torch::nn::Module& module,
                    const std::function<bool(const torch::Tensor&)>& is_exchanged) {
  for (const NamedTensor& parameter : trained_in(module))
    if (parameter.tensor.grad().defined() && !is_exchanged(parameter.tensor))
      throw UsageError(
          "parameter '" + parameter.name +
          "' has a gradient, which nobody exchanges: it came since the model was wrapped; make a new " +
          strategy);
}

void refuse_other(const std::string& strategy, const std::vector<NamedTensor>& before,
                  const std::vector<NamedTensor>& now) {
  const auto refuse_new = [&](const std::vector<NamedTensor>& list, const std::vector<NamedTensor>& others,
                              const char* what) {
    for (const NamedTensor& parameter : list)
      if (std::ranges::none_of(
              others, [&](const NamedTensor& other) { return other.tensor.is_same(parameter.tensor); }))
        throw UsageError("parameter '" + parameter.name + "' " + what +
                         " since the model was wrapped; make a new " + strategy);
  };
  refuse_new(now, before, "is trained, which it was not,");
  refuse_new(before, now, "is not trained any more, which it was,");
}

void leave_one_copy(const std::vector<NamedTensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters)
    if (OneCopy::holds(tensor.data_ptr())) torch::Tensor(tensor).set_data(tensor.detach().clone());
}

}  // namespace lockstep
