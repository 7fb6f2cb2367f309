// What our models do in one pass on a GPU where libtorch takes several: forward and backward, in kernels of
// ours (cuda/*.cu; docs/gpu.md says which bytes they move). All sums have a fixed order, so results have the
// same bits each time. Where a build has no such kernels, kBuilt is false and nothing else here is defined:
// ask by `if constexpr`.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdint>
#include <tuple>
#include <utility>

namespace lockstep::fused {

#ifdef LOCKSTEP_MODEL_KERNELS
inline constexpr bool kBuilt = true;
#else
inline constexpr bool kBuilt = false;
#endif

// Batch norm in training of `x`, [batch, channels, height, width] and channels-last on a GPU, f32, f16 or
// bf16, with the module's parameters and statistics in f32; those move as the module's own forward moves
// them.
bool takes(const torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x);
torch::Tensor batch_norm(torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x);
torch::Tensor batch_norm_relu(torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x);
// relu(norm(x) + residual), twice the same tensor: what the next block's branch and its shortcut take. Their
// gradients are then added up where they are read.
std::pair<torch::Tensor, torch::Tensor> batch_norm_add_relu(torch::nn::BatchNorm2dImpl& norm,
                                                            const torch::Tensor& x,
                                                            const torch::Tensor& residual);

// The largest of 3 × 3, stride 2, border 1, of channels-last images on a GPU; twice the same tensor, as
// above.
bool takes_pooling(const torch::Tensor& x);
std::pair<torch::Tensor, torch::Tensor> max_pool(const torch::Tensor& x);

// The transformer's parts on a GPU: rows of tokens, [batch × tokens, width], width up to 1024. `weight` is
// any of the model's matrices, all of one type, f32, f16 or bf16. Not under autocast, which would change
// types in between.
bool takes(const torch::nn::LayerNormImpl& norm, const torch::Tensor& weight, std::int64_t heads);

// The residual stream. What is added to it waits for the next norm, which adds it, and the bias before it, on
// its way.
class ResidualStream {
 public:
  // The sum; what waits, and the bias before it, or undefined: how it goes from one unit (parallel/units.h)
  // to the next.
  using Parts = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

  explicit ResidualStream(torch::Tensor x) : sum_(std::move(x)) {}
  explicit ResidualStream(Parts parts)
      : sum_(std::move(std::get<0>(parts))),
        branch_(std::move(std::get<1>(parts))),
        branch_bias_(std::move(std::get<2>(parts))) {}
  void add(torch::nn::LinearImpl& linear, const torch::Tensor& x);  // linear(x)
  torch::Tensor normed(torch::nn::LayerNormImpl& norm);             // the layer norm of the sum

  Parts parts() const { return {sum_, branch_, branch_bias_}; }
  // Where parameters go with their unit: the bias that waits is a copy of it from now on.
  void keep_bias() {
    if (branch_bias_.defined()) branch_bias_ = branch_bias_.clone();
  }

 private:
  torch::Tensor sum_;
  torch::Tensor branch_;  // undefined: nothing waits
  torch::Tensor branch_bias_;
};

// GELU of the linear layer. The bias' gradient is made while GELU's is.
torch::Tensor linear_gelu(torch::nn::LinearImpl& linear, const torch::Tensor& x);

// Causal attention by libtorch's fused kernels. `linear` has 3 × width outputs, head by head query, key and
// value, which attention takes as strided tensors: forward copies nothing, and backward weaves their
// gradients, and makes the bias', in one pass.
struct HeadShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
};
torch::Tensor causal_attention(torch::nn::LinearImpl& linear, const torch::Tensor& x, HeadShape shape);

// lockstep/models/cross_entropy.h on a GPU: logits [rows, classes], target [rows] of numbers of classes.
bool takes_logits(const torch::Tensor& logits, const torch::Tensor& target);
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target);

}  // namespace lockstep::fused
