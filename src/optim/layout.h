// Where parameters, gradients and state lie in memory, and how they become plain arrays for the kernels.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

// Zeros for each parameter, `kinds` tensors each: [parameter][kind], of its type, or f32 for 16-bit ones
// where `master_weights` says so. All of a kind, an element type and a device lie in one allocation, each on
// a cache line's boundary; where the parameter covers its memory without holes (contiguous, channels last …),
// its state has the same strides, so that element i of the arrays belongs together.
std::vector<std::vector<torch::Tensor>> allocate_state(const std::vector<torch::Tensor>& parameters,
                                                       std::size_t kinds,
                                                       MasterWeights master_weights = MasterWeights::none);

// Memory for the state of one parameter, as allocate_state lays it out, and the elements of a parameter in
// that order, in a row: its own memory where that has no holes, else a copy.
torch::Tensor empty_state(const torch::Tensor& parameter, torch::ScalarType dtype);
torch::Tensor in_state_order(const torch::Tensor& parameter);

// All that the meaning of a parameter's state depends on where it lies in a row. Of two that are equal
// element i belongs to the same indices.
struct StateOrder {
  torch::ScalarType dtype = torch::ScalarType::Undefined;  // the parameter's
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> strides = {};  // the state's; 0 where the size is 1, and they mean nothing
  bool operator==(const StateOrder&) const = default;
};
StateOrder order_of_state(const torch::Tensor& parameter);

// A parameter, its gradient and its state as arrays with the elements in one common order: their own memory
// where that is so already, else copies.
class Arrays {
 public:
  Arrays(torch::Tensor parameter, torch::Tensor gradient, std::vector<torch::Tensor> state);

  std::size_t count() const { return static_cast<std::size_t>(parameter_.numel()); }
  void* parameter() const { return parameter_.data_ptr(); }
  const void* gradient() const { return gradient_.data_ptr(); }
  void* state(std::size_t kind) const { return kind < state_.size() ? state_[kind].data_ptr() : nullptr; }

  // After the arrays were updated: copies go back to where they came from.
  void write_back() const;

 private:
  struct Return {
    torch::Tensor to, from;
  };
  torch::Tensor parameter_, gradient_;
  std::vector<torch::Tensor> state_;
  std::vector<Return> returns_;
};

}  // namespace lockstep
