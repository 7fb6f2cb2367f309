// The gradients of a plain list of parameters: grad(), as it is; no peer is asked.
#pragma once

#include <ATen/ops/isfinite.h>

#include <algorithm>

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
    return std::ranges::any_of(parameters_, [](const NamedTensor& parameter) {
      const torch::Tensor& gradient = parameter.tensor.grad();
      return gradient.defined() && !at::isfinite(gradient).all().item<bool>();
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
