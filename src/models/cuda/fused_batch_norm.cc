#include <torch/csrc/autograd/custom_function.h>

#include "models/cuda/batch_norm.h"
#include "models/cuda/glue.h"
#include "models/fused.h"

namespace lockstep::fused {
namespace {

using gpu::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

gpu::ColumnTiles tiles_of_images(const at::Tensor& x) {
  return gpu::tiles_of({.rows = x.numel() / x.size(1), .columns = x.size(1)}, gpu::element_of(x));
}

struct FusedBatchNorm : torch::autograd::Function<FusedBatchNorm> {
  // `running.batches` and so on belong to the module, which outlives the kernels' launch.
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const gpu::MaybeTensor& residual, const at::Tensor& weight,
                               const at::Tensor& bias, double epsilon, const gpu::NormRunning& running,
                               Activation activation) {
    const c10::cuda::CUDAGuard guard(x.device());
    const cudaStream_t stream = gpu::stream_of(x);
    const gpu::ColumnTiles tiles = tiles_of_images(x);
    const gpu::Element element = gpu::element_of(x);
    const at::Tensor kept = gpu::floats(gpu::NormSaved::kArrays * tiles.columns, x);
    const gpu::NormSaved saved{gpu::float_data(kept), tiles.columns};
    const at::Tensor partial = gpu::floats(2 * tiles.chunks * tiles.columns, x);
    gpu::batch_norm_statistics(
        element, tiles, x.data_ptr(),
        {.weight = gpu::float_data(weight), .bias = gpu::float_data(bias), .epsilon = epsilon}, running,
        saved, gpu::float_data(partial), stream);
    const bool adds = activation == Activation::add_relu;
    const at::Tensor beside = adds ? residual.value().contiguous(kChannelsLast) : at::Tensor();
    const at::Tensor y = at::empty(x.sizes(), x.options(), kChannelsLast);
    const at::Tensor mask =
        adds ? at::empty({x.numel() / gpu::vector_width(element)}, x.options().dtype(at::kByte))
             : at::Tensor();
    gpu::batch_norm_apply({.element = element,
                           .activation = activation,
                           .x = x.data_ptr(),
                           .residual = gpu::data_or_null(beside),
                           .y = y.data_ptr(),
                           .mask = static_cast<std::uint8_t*>(gpu::data_or_null(mask))},
                          tiles, saved, stream);
    context->save_for_backward({x, kept, mask});
    context->saved_data["activation"] = static_cast<std::int64_t>(activation);
    context->set_materialize_grads(false);
    if (!adds) return {y};
    return {y, gpu::alias_of(y, 0, y.sizes(), y.strides())};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("batch norm");
    const variable_list saved_tensors = context->get_saved_variables();
    const at::Tensor &x = saved_tensors[0], &kept = saved_tensors[1], &mask = saved_tensors[2];
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    at::Tensor dy, dy_more;
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) (dy.defined() ? dy_more : dy) = gradient.contiguous(kChannelsLast);
    if (!dy.defined()) return variable_list(7);
    const c10::cuda::CUDAGuard guard(x.device());
    const gpu::ColumnTiles tiles = tiles_of_images(x);
    const at::Tensor dx = at::empty(x.sizes(), x.options(), kChannelsLast);
    const at::Tensor d_residual = mask.defined() ? at::empty_like(dx) : at::Tensor();
    const at::Tensor d_weight = gpu::floats(tiles.columns, x), d_bias = gpu::floats(tiles.columns, x);
    const at::Tensor partial = gpu::floats(2 * tiles.chunks * tiles.columns, x);
    const at::Tensor coefficients = gpu::floats(2 * tiles.columns, x);
    gpu::batch_norm_backward({.element = gpu::element_of(x),
                              .activation = activation,
                              .dy = dy.data_ptr(),
                              .dy_more = gpu::data_or_null(dy_more),
                              .x = x.data_ptr(),
                              .mask = static_cast<const std::uint8_t*>(gpu::data_or_null(mask)),
                              .d_residual = gpu::data_or_null(d_residual),
                              .dx = dx.data_ptr(),
                              .d_weight = gpu::float_data(d_weight),
                              .d_bias = gpu::float_data(d_bias),
                              .coefficients = gpu::float_data(coefficients),
                              .partial = gpu::float_data(partial)},
                             tiles, {gpu::float_data(kept), tiles.columns}, gpu::stream_of(x));
    return {dx, d_residual, d_weight, d_bias, {}, {}, {}};
  }
};

bool is_float_vector(const at::Tensor& tensor, const at::Tensor& beside) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
         tensor.device() == beside.device();
}

variable_list run(torch::nn::BatchNorm2dImpl& norm, const at::Tensor& x, const at::Tensor& residual,
                  Activation activation) {
  const gpu::NormRunning running{.mean = gpu::float_data(norm.running_mean),
                                 .variance = gpu::float_data(norm.running_var),
                                 .batches = static_cast<std::int64_t*>(norm.num_batches_tracked.data_ptr()),
                                 .momentum = norm.options.momentum().value()};
  return FusedBatchNorm::apply(x, gpu::maybe(residual), norm.weight, norm.bias, norm.options.eps(), running,
                               activation);
}

}  // namespace

bool takes(const torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x) {
  return norm.is_training() && x.dim() == 4 && x.size(1) == norm.options.num_features() &&
         gpu::fits(x, x.size(1)) && x.is_contiguous(kChannelsLast) && x.numel() / x.size(1) > 1 &&
         norm.options.momentum().has_value() && is_float_vector(norm.weight, x) &&
         is_float_vector(norm.bias, x) && is_float_vector(norm.running_mean, x) &&
         is_float_vector(norm.running_var, x) && norm.num_batches_tracked.defined() &&
         norm.num_batches_tracked.device() == x.device();
}

torch::Tensor batch_norm(torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x) {
  return run(norm, x, {}, Activation::none)[0];
}

torch::Tensor batch_norm_relu(torch::nn::BatchNorm2dImpl& norm, const torch::Tensor& x) {
  return run(norm, x, {}, Activation::relu)[0];
}

std::pair<torch::Tensor, torch::Tensor> batch_norm_add_relu(torch::nn::BatchNorm2dImpl& norm,
                                                            const torch::Tensor& x,
                                                            const torch::Tensor& residual) {
  if (residual.sizes() != x.sizes() || residual.scalar_type() != x.scalar_type() ||
      residual.device() != x.device())
    throw UsageError(c10::str("batch_norm_add_relu: a residual of shape ", residual.sizes(), " and type ",
                              residual.scalar_type(), " beside ", x.sizes(), " of ", x.scalar_type(),
                              "; accepted: the same"));
  const variable_list both = run(norm, x, residual, Activation::add_relu);
  return {both[0], both[1]};
}

}  // namespace lockstep::fused
