// The gradients of a plain list of parameters: grad(), as it is; no peer is asked.
#pragma once

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <map>
#include <vector>

#include "grad/finite.h"
#include "grad/torch_types.h"
#include "grad/whole_slices.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

class ListedParameters final : public GradientSource {
 public:
  explicit ListedParameters(std::vector<NamedTensor> parameters)
      : parameters_(std::move(parameters)), slices_(parameters_) {}

  std::vector<NamedTensor> parameters() const override { return parameters_; }
  std::span<const Slice> slices() override { return slices_.now(); }
  void synchronize() override {}
  void watch_overflow(bool) override {}
  bool overflowed() const override {
    const torch::NoGradGuard no_grad;
    std::map<int, std::vector<Buffer>> there;  // by the index of a GPU, which is asked once
    for (const auto& [name, tensor] : parameters_) {
      const torch::Tensor& gradient = tensor.grad();
      if (!gradient.defined()) continue;
      if (gradient.is_cuda() && gradient.is_non_overlapping_and_dense())
        there[gradient.device().index()].push_back(buffer_of(gradient, "the gradient of '" + name + "'"));
      else if (!at::isfinite(gradient).all().item<bool>())
        return true;
    }
    return std::ranges::any_of(there, [](const auto& list) {
      const torch::Device device(torch::kCUDA, static_cast<c10::DeviceIndex>(list.first));
      const torch::Tensor found =
          torch::zeros({1}, torch::TensorOptions().dtype(torch::kInt32).device(device));
      mark_not_finite(list.second, found);
      return found.item<std::int32_t>() != 0;
    });
  }
  void begin_updates() override {}
  void share_updates() override {}
  void end_step() override { slices_.forget(); }
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override { join_whole(parts, take); }
  torch::Tensor cut(std::size_t, const torch::Tensor& whole) const override { return whole; }
  void add_parts(std::span<double>) override {}

 private:
  std::vector<NamedTensor> parameters_;
  WholeSlices slices_;
};

}  // namespace lockstep
