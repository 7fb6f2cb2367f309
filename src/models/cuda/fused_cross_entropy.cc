#include <torch/csrc/autograd/custom_function.h>

#include "models/cuda/cross_entropy.h"
#include "models/cuda/glue.h"
#include "models/fused.h"

namespace lockstep::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FusedCrossEntropy : torch::autograd::Function<FusedCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits_, const at::Tensor& target_) {
    const c10::cuda::CUDAGuard guard(logits_.device());
    const at::Tensor logits = logits_.contiguous(), target = target_.contiguous();
    const at::Tensor log_sum = gpu::floats(logits.size(0), logits),
                     losses = gpu::floats(logits.size(0), logits);
    const at::Tensor mean = gpu::floats(2, logits);
    gpu::cross_entropy_forward({.element = gpu::element_of(logits),
                                .rows = logits.size(0),
                                .classes = logits.size(1),
                                .logits = logits.data_ptr(),
                                .target = target.data_ptr<std::int64_t>(),
                                .log_sum = gpu::float_data(log_sum),
                                .losses = gpu::float_data(losses),
                                .mean = gpu::float_data(mean)},
                               gpu::stream_of(logits));
    context->save_for_backward({logits, target, log_sum, mean});
    return gpu::alias_of(mean, 0, {}, {});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    gpu::refuse_second_order("cross entropy");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &target = saved[1], &log_sum = saved[2], &mean = saved[3];
    const c10::cuda::CUDAGuard guard(logits.device());
    const at::Tensor d_loss = gradients[0].to(at::kFloat);
    const at::Tensor d_logits = at::empty_like(logits);
    gpu::cross_entropy_backward({.element = gpu::element_of(logits),
                                 .rows = logits.size(0),
                                 .classes = logits.size(1),
                                 .logits = logits.data_ptr(),
                                 .target = target.data_ptr<std::int64_t>(),
                                 .log_sum = gpu::float_data(log_sum),
                                 .mean = gpu::float_data(mean),
                                 .d_loss = gpu::float_data(d_loss),
                                 .d_logits = d_logits.data_ptr()},
                                gpu::stream_of(logits));
    return {d_logits, {}};
  }
};

}  // namespace

bool takes_logits(const torch::Tensor& logits, const torch::Tensor& target) {
  return logits.is_cuda() && logits.dim() == 2 && gpu::element_of(logits.scalar_type()).has_value() &&
         logits.size(1) > 0 && target.dim() == 1 && target.scalar_type() == at::kLong &&
         target.size(0) == logits.size(0) && target.device() == logits.device();
}

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target) {
  return FusedCrossEntropy::apply(logits, target);
}

}  // namespace lockstep::fused
