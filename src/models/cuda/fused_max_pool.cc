#include <torch/csrc/autograd/custom_function.h>

#include "models/cuda/glue.h"
#include "models/cuda/max_pool.h"
#include "models/fused.h"

namespace lockstep::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FusedMaxPool : torch::autograd::Function<FusedMaxPool> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x) {
    const c10::cuda::CUDAGuard guard(x.device());
    const gpu::PoolShape shape{x.size(0), x.size(2), x.size(3), x.size(1)};
    const at::Tensor y = at::empty({shape.images, shape.channels, shape.out_height(), shape.out_width()},
                                   x.options(), at::MemoryFormat::ChannelsLast);
    const at::Tensor chosen = at::empty({y.numel()}, x.options().dtype(at::kByte));
    gpu::max_pool_forward(gpu::element_of(x), shape, x.data_ptr(), y.data_ptr(),
                          static_cast<std::uint8_t*>(chosen.data_ptr()), gpu::stream_of(x));
    context->save_for_backward({chosen});
    context->saved_data["sizes"] = x.sizes().vec();
    context->set_materialize_grads(false);
    return {y, gpu::alias_of(y, 0, y.sizes(), y.strides())};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("max pooling");
    const at::Tensor chosen = context->get_saved_variables()[0];
    at::Tensor dy, dy_more;
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined())
        (dy.defined() ? dy_more : dy) = gradient.contiguous(at::MemoryFormat::ChannelsLast);
    if (!dy.defined()) return {at::Tensor()};
    const c10::cuda::CUDAGuard guard(dy.device());
    const std::vector<std::int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const at::Tensor dx = at::empty(sizes, dy.options(), at::MemoryFormat::ChannelsLast);
    gpu::max_pool_backward(gpu::element_of(dy), {sizes[0], sizes[2], sizes[3], sizes[1]},
                           {.dy = dy.data_ptr(),
                            .dy_more = gpu::data_or_null(dy_more),
                            .chosen = static_cast<const std::uint8_t*>(chosen.data_ptr()),
                            .dx = dx.data_ptr()},
                           gpu::stream_of(dy));
    return {dx};
  }
};

}  // namespace

bool takes_pooling(const torch::Tensor& x) {
  return x.dim() == 4 && gpu::fits(x, x.size(1)) && x.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         x.numel() > 0 && x.numel() / gpu::vector_width(gpu::element_of(x)) < std::int64_t{1} << 31;
}

std::pair<torch::Tensor, torch::Tensor> max_pool(const torch::Tensor& x) {
  const variable_list both = FusedMaxPool::apply(x);
  return {both[0], both[1]};
}

}  // namespace lockstep::fused
