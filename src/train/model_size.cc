#include "train/model_size.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace lockstep {
namespace {

bool is_number(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

class SizeTaker {
 public:
  explicit SizeTaker(const torch::nn::Module& module) {
    take_units(module);
    end_unit(rest_);
  }
  ModelSize size;

 private:
  void take_units(const torch::nn::Module& module) {
    rest_ += take_own(module);
    for (const auto& child : module.named_children()) {
      if (is_number(child.key()))
        end_unit(take_all(*child.value()));
      else
        take_units(*child.value());
    }
  }

  double take_all(const torch::nn::Module& module) {
    double bytes = take_own(module);
    for (const auto& child : module.children()) bytes += take_all(*child);
    return bytes;
  }

  // The bytes of parameters that are the module's own, and are new.
  double take_own(const torch::nn::Module& module) {
    double bytes = 0;
    for (const torch::Tensor& p : module.parameters(/*recurse=*/false)) {
      if (!seen_.insert(p.unsafeGetTensorImpl()).second) continue;
      const ParameterKind kind{.count = static_cast<double>(p.numel()),
                               .element_bytes = static_cast<int>(p.element_size()),
                               .trained = p.requires_grad()};
      add(kind);
      if (kind.count > size.largest_tensor.count) size.largest_tensor = kind;
      bytes += kind.count * kind.element_bytes;
    }
    return bytes;
  }

  void add(const ParameterKind& kind) {
    const auto same = std::ranges::find_if(size.parameters, [&](const ParameterKind& other) {
      return other.element_bytes == kind.element_bytes && other.trained == kind.trained;
    });
    if (same != size.parameters.end())
      same->count += kind.count;
    else
      size.parameters.push_back(kind);
  }

  void end_unit(double bytes) { size.largest_unit_bytes = std::max(size.largest_unit_bytes, bytes); }

  std::unordered_set<const void*> seen_;
  double rest_ = 0;  // bytes in no numbered module
};

}  // namespace

ModelSize model_size(const torch::nn::Module& module) { return SizeTaker(module).size; }

}  // namespace lockstep
