// Operations on a GPU held against the same on the processor.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace lockstep {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

const torch::Device kGpu(torch::kCUDA, 0);

// Outputs, then gradients of all inputs for given gradients of the outputs.
Tensors run(const std::function<Tensors(const Tensors&)>& operation, const Tensors& inputs,
            const Tensors& d_outputs) {
  Tensors own;
  for (const Tensor& input : inputs) own.push_back(input.detach().clone().set_requires_grad(true));
  const Tensors outputs = operation(own);
  Tensors results = outputs;
  for (const Tensor& gradient : torch::autograd::grad(outputs, own, d_outputs)) results.push_back(gradient);
  return results;
}

Tensors moved(const Tensors& tensors, torch::Device device, torch::ScalarType type) {
  Tensors there;
  for (const Tensor& tensor : tensors) there.push_back(tensor.to(device, type));
  return there;
}

// The type's own rounding (half a unit in the last place) of the results and of `steps` values on the way to
// them, as a part of the largest of the tensor, and of f32's in sums.
double tolerance(torch::ScalarType type, double steps) {
  const double unit = type == torch::kBFloat16 ? 0x1p-8 : type == torch::kHalf ? 0x1p-11 : 0x1p-24 * 16;
  return unit * (1 + steps);
}

void expect_close(const Tensors& got, const Tensors& expected, double relative) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Tensor a = got[i].detach().to(torch::kCPU, torch::kFloat64),
                 b = expected[i].detach().to(torch::kFloat64);
    ASSERT_EQ(a.sizes(), b.sizes()) << "result " << i;
    const double largest = std::max(b.abs().max().item<double>(), 1e-6);
    EXPECT_LE((a - b).abs().max().item<double>(), relative * largest)
        << "result " << i << ", largest " << largest;
    EXPECT_TRUE(torch::isfinite(a).all().item<bool>()) << "result " << i;
  }
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << "result " << i;
}

}  // namespace
}  // namespace lockstep
