#include <torch/csrc/autograd/custom_function.h>

#include "models/cuda/add_norm.h"
#include "models/cuda/glue.h"
#include "models/cuda/linear.h"
#include "models/fused.h"

namespace lockstep::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

gpu::ColumnTiles tiles_of_rows(const at::Tensor& x) {
  return gpu::tiles_of({.rows = x.size(0), .columns = x.size(1)}, gpu::element_of(x));
}

struct FusedAddNorm : torch::autograd::Function<FusedAddNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const gpu::MaybeTensor& given_branch, const gpu::MaybeTensor& given_bias,
                               const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor branch = gpu::or_undefined(given_branch), branch_bias = gpu::or_undefined(given_bias);
    const at::Tensor stream_in = x.contiguous();
    const at::Tensor branch_in = branch.defined() ? branch.contiguous() : branch;
    const at::Tensor sum = branch.defined() ? at::empty_like(stream_in) : at::Tensor();
    const at::Tensor normed = at::empty_like(stream_in);
    const at::Tensor mean = gpu::floats(x.size(0), x), inverse = gpu::floats(x.size(0), x);
    gpu::add_norm_forward({.element = gpu::element_of(x),
                           .shape = {.rows = x.size(0), .columns = x.size(1)},
                           .x = stream_in.data_ptr(),
                           .branch = gpu::data_or_null(branch_in),
                           .branch_bias = gpu::data_or_null(branch_bias),
                           .weight = weight.data_ptr(),
                           .bias = bias.data_ptr(),
                           .epsilon = epsilon,
                           .sum = gpu::data_or_null(sum),
                           .normed = normed.data_ptr(),
                           .mean = gpu::float_data(mean),
                           .inverse = gpu::float_data(inverse)},
                          gpu::stream_of(x));
    // Without a branch the stream goes through: another tensor over the same memory, so that its gradient
    // comes here and is added on the way.
    const at::Tensor through =
        sum.defined() ? sum : gpu::alias_of(stream_in, 0, stream_in.sizes(), stream_in.strides());
    context->save_for_backward({through, weight, mean, inverse});
    context->saved_data["branch"] = branch.defined();
    context->saved_data["branch_bias"] = branch_bias.defined();
    context->set_materialize_grads(false);
    return {through, normed};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("add and layer norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const bool with_branch = context->saved_data["branch"].toBool();
    const at::Tensor d_sum = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    if (!gradients[1].defined()) return {d_sum, with_branch ? d_sum : at::Tensor(), {}, {}, {}, {}};
    const c10::cuda::CUDAGuard guard(sum.device());
    const at::Tensor d_normed = gradients[1].contiguous();
    const at::Tensor dx = at::empty_like(sum), d_weight = at::empty_like(weight),
                     d_bias = at::empty_like(weight);
    const at::Tensor d_branch_bias =
        context->saved_data["branch_bias"].toBool() ? at::empty_like(weight) : at::Tensor();
    const at::Tensor partial = gpu::floats(3 * gpu::add_norm_chunks(sum.size(0)) * sum.size(1), sum);
    gpu::add_norm_backward({.element = gpu::element_of(sum),
                            .shape = {.rows = sum.size(0), .columns = sum.size(1)},
                            .d_sum = gpu::data_or_null(d_sum),
                            .d_normed = d_normed.data_ptr(),
                            .sum = sum.data_ptr(),
                            .weight = weight.data_ptr(),
                            .mean = gpu::float_data(mean),
                            .inverse = gpu::float_data(inverse),
                            .dx = dx.data_ptr(),
                            .d_weight = d_weight.data_ptr(),
                            .d_bias = d_bias.data_ptr(),
                            .d_branch_bias = gpu::data_or_null(d_branch_bias),
                            .partial = gpu::float_data(partial)},
                           gpu::stream_of(sum));
    return {dx, with_branch ? dx : at::Tensor(), d_branch_bias, d_weight, d_bias, {}};
  }
};

struct FusedLinearGelu : torch::autograd::Function<FusedLinearGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor before = at::addmm(bias, x, weight.t());
    const at::Tensor y = at::empty_like(before);
    gpu::gelu_forward(gpu::element_of(x), tiles_of_rows(before), before.data_ptr(), y.data_ptr(),
                      gpu::stream_of(x));
    context->save_for_backward({x, weight, before});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("linear and GELU");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &before = saved[2];
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor dy = gradients[0].contiguous();
    const gpu::ColumnTiles tiles = tiles_of_rows(before);
    const at::Tensor d_before = at::empty_like(before),
                     d_bias = at::empty({before.size(1)}, before.options());
    const at::Tensor partial = gpu::floats(tiles.chunks * tiles.columns, x);
    gpu::gelu_backward({.element = gpu::element_of(x),
                        .dy = dy.data_ptr(),
                        .x = before.data_ptr(),
                        .dx = d_before.data_ptr(),
                        .d_bias = d_bias.data_ptr(),
                        .partial = gpu::float_data(partial)},
                       tiles, gpu::stream_of(x));
    return {at::mm(d_before, weight), at::mm(d_before.t(), x), d_bias};
  }
};

struct FusedQueryKeyValue : torch::autograd::Function<FusedQueryKeyValue> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const HeadShape& shape) {
    const at::Tensor woven = at::addmm(bias, x, weight.t());
    const std::int64_t tokens = x.size(0) / shape.batch, columns = woven.size(1);
    const std::int64_t depth = columns / (3 * shape.heads);
    context->save_for_backward({x, weight});
    variable_list parts;
    for (std::int64_t part = 0; part < 3; ++part)
      parts.push_back(gpu::alias_of(woven, part * depth, {shape.batch, shape.heads, tokens, depth},
                                    {tokens * columns, 3 * depth, columns, 1}));
    return parts;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("queries, keys and values");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const c10::cuda::CUDAGuard guard(x.device());
    at::Tensor parts[3];  // [batch, tokens, heads, depth], as attention's backward leaves them
    for (std::size_t i = 0; i < 3; ++i) parts[i] = gradients[i].transpose(1, 2).contiguous();
    const at::Tensor woven = at::empty({x.size(0), weight.size(0)}, x.options());
    const at::Tensor d_bias = at::empty({weight.size(0)}, x.options());
    const gpu::ColumnTiles tiles = tiles_of_rows(woven);
    const at::Tensor partial = gpu::floats(tiles.chunks * tiles.columns, x);
    gpu::weave_heads({.element = gpu::element_of(x),
                      .depth = parts[0].size(3),
                      .parts = {parts[0].data_ptr(), parts[1].data_ptr(), parts[2].data_ptr()},
                      .woven = woven.data_ptr(),
                      .sums = d_bias.data_ptr(),
                      .partial = gpu::float_data(partial)},
                     tiles, gpu::stream_of(x));
    return {at::mm(woven, weight), at::mm(woven.t(), x), d_bias, {}};
  }
};

}  // namespace

bool takes(const torch::nn::LayerNormImpl& norm, const torch::Tensor& weight, std::int64_t heads) {
  const std::int64_t width = weight.size(-1);
  const auto is_beside = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() == width && tensor.scalar_type() == weight.scalar_type() &&
           tensor.device() == weight.device() && tensor.is_contiguous();
  };
  return gpu::fits(weight, width) && gpu::fits(weight, width / heads) && width <= gpu::kMostNormColumns &&
         is_beside(norm.weight) && is_beside(norm.bias) && !gpu::autocasts();
}

void ResidualStream::add(torch::nn::LinearImpl& linear, const torch::Tensor& x) {
  branch_ = at::linear(x, linear.weight);
  branch_bias_ = linear.bias;
}

torch::Tensor ResidualStream::normed(torch::nn::LayerNormImpl& norm) {
  const variable_list both = FusedAddNorm::apply(sum_, gpu::maybe(branch_), gpu::maybe(branch_bias_),
                                                 norm.weight, norm.bias, norm.options.eps());
  sum_ = both[0];
  branch_ = branch_bias_ = at::Tensor();
  return both[1];
}

torch::Tensor linear_gelu(torch::nn::LinearImpl& linear, const torch::Tensor& x) {
  return FusedLinearGelu::apply(x, linear.weight, linear.bias);
}

torch::Tensor causal_attention(torch::nn::LinearImpl& linear, const torch::Tensor& x, HeadShape shape) {
  const variable_list parts = FusedQueryKeyValue::apply(x, linear.weight, linear.bias, shape);
#if TORCH_VERSION_MAJOR >= 2
  const at::Tensor result = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                             /*dropout_p=*/0.0, /*is_causal=*/true);
#else
  const at::Tensor result = std::get<0>(at::_scaled_dot_product_attention(
      parts[0], parts[1], parts[2], {}, /*dropout_p=*/0.0, /*need_attn_weights=*/false, /*is_causal=*/true));
#endif
  return result.transpose(1, 2).reshape(x.sizes());  // as it lies, where the kernels are fused
}

}  // namespace lockstep::fused
