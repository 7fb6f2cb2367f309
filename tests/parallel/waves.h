// Values for parameters and inputs that no two tensors of a test have in common.
#pragma once

#include <torch/types.h>

namespace lockstep::testing {

inline torch::Tensor waves(at::IntArrayRef sizes, double phase, torch::Device device = torch::kCPU) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(count, torch::kFloat64) + phase).to(torch::kFloat32).view(sizes).to(device);
}

}  // namespace lockstep::testing
