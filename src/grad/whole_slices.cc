#include "grad/whole_slices.h"

namespace lockstep {

WholeSlices::WholeSlices(const std::vector<NamedTensor>& parameters) {
  for (const auto& [name, tensor] : parameters)
    slices_.push_back({.name = name,
                       .whole = tensor.defined() ? tensor.sizes().vec() : std::vector<std::int64_t>(),
                       .elements = {0, tensor.defined() ? static_cast<std::size_t>(tensor.numel()) : 0},
                       .parameter = tensor});
}

std::span<const Slice> WholeSlices::now() {
  for (Slice& slice : slices_)
    if (slice.parameter.defined()) slice.gradient = slice.parameter.grad();
  return slices_;
}

void WholeSlices::forget() {
  for (Slice& slice : slices_) slice.gradient = torch::Tensor();
}

void join_whole(const std::vector<torch::Tensor>& parts, const GradientSource::Take& take) {
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].defined()) take(i, parts[i]);
}

}  // namespace lockstep
