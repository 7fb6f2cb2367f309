#include "optim/layout.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/round_up.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLineBytes = 64;

// Whether element i of one tensor's memory is element i of the other's. Both cover their memory without
// holes, so equal strides are enough; those of dimensions of size 1 don't matter.
bool same_order(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (std::int64_t k = 0; k < a.dim(); ++k)
    if (a.size(k) != b.size(k) || (a.size(k) > 1 && a.stride(k) != b.stride(k))) return false;
  return true;
}

std::vector<std::int64_t> contiguous_strides(const torch::Tensor& tensor) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t k = strides.size(); k-- > 1;)
    strides[k - 1] = strides[k] * std::max<std::int64_t>(tensor.size(static_cast<std::int64_t>(k)), 1);
  return strides;
}

// The parameter's own where it covers its memory without holes.
std::vector<std::int64_t> state_strides(const torch::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter.strides().vec() : contiguous_strides(parameter);
}

}  // namespace

std::vector<std::vector<torch::Tensor>> allocate_state(const std::vector<torch::Tensor>& parameters,
                                                       std::size_t kinds, MasterWeights master_weights) {
  using Home = std::tuple<torch::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  const auto home_of = [&](const torch::Tensor& tensor) {
    const bool widened = master_weights == MasterWeights::f32 && tensor.element_size() == 2;
    return Home(widened ? torch::kFloat32 : tensor.scalar_type(), tensor.device().type(),
                tensor.device().index());
  };
  std::map<Home, std::int64_t> totals;  // elements, padding included
  std::vector<std::int64_t> offsets;
  for (const torch::Tensor& tensor : parameters) {
    std::int64_t& total = totals[home_of(tensor)];
    const auto line = kLineBytes / static_cast<std::int64_t>(c10::elementSize(std::get<0>(home_of(tensor))));
    offsets.push_back(total);
    total += round_up(tensor.numel(), line);
  }
  std::vector<std::vector<torch::Tensor>> state(parameters.size());
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    std::map<Home, torch::Tensor> flat;
    for (const auto& [home, total] : totals) {
      const auto& [dtype, device, index] = home;
      flat[home] =
          torch::zeros({total}, torch::TensorOptions().dtype(dtype).device(torch::Device(device, index)));
    }
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const torch::Tensor& tensor = parameters[k];
      state[k].push_back(flat[home_of(tensor)].as_strided(tensor.sizes(), state_strides(tensor), offsets[k]));
    }
  }
  return state;
}

torch::Tensor empty_state(const torch::Tensor& parameter, torch::ScalarType dtype) {
  return torch::empty_strided(parameter.sizes(), state_strides(parameter),
                              torch::TensorOptions().dtype(dtype));
}

StateOrder order_of_state(const torch::Tensor& parameter) {
  StateOrder order{.dtype = parameter.scalar_type(),
                   .sizes = parameter.sizes().vec(),
                   .strides = state_strides(parameter)};
  for (std::size_t k = 0; k < order.sizes.size(); ++k)
    if (order.sizes[k] == 1) order.strides[k] = 0;
  return order;
}

torch::Tensor in_state_order(const torch::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) return parameter.contiguous().view({-1});
  return parameter.as_strided({parameter.numel()}, {1}, parameter.storage_offset());
}

Arrays::Arrays(torch::Tensor parameter, torch::Tensor gradient, std::vector<torch::Tensor> state)
    : parameter_(std::move(parameter)), gradient_(std::move(gradient)), state_(std::move(state)) {
  bool together = parameter_.is_non_overlapping_and_dense();
  for (const torch::Tensor& tensor : state_) together = together && same_order(parameter_, tensor);
  if (!together) {
    const auto make_contiguous = [&](torch::Tensor& tensor) {
      if (tensor.is_contiguous()) return;
      returns_.push_back({tensor, tensor.contiguous()});
      tensor = returns_.back().from;
    };
    make_contiguous(parameter_);
    for (torch::Tensor& tensor : state_) make_contiguous(tensor);
  }
  if (!same_order(parameter_, gradient_))
    gradient_ =
        torch::empty_strided(parameter_.sizes(), parameter_.strides(), gradient_.options()).copy_(gradient_);
}

void Arrays::write_back() const {
  for (const auto& [to, from] : returns_) to.copy_(from);
}

}  // namespace lockstep
