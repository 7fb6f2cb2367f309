#include "lockstep/parallel/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <ostream>
#include <sstream>

#include "lockstep/base/error.h"
#include "parallel/norm_sums.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs besides tensors.
struct Together final : torch::CustomClassHolder {
  Group group;
  std::string name;
  double lane_weight = 1;
  double count = 0;  // values a channel, of all ranks
  double epsilon = 0;
};

// One number a channel, as [1, channels, 1, …] beside `x`.
torch::Tensor beside(const torch::Tensor& x, const torch::Tensor& numbers) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return numbers.to(x.options().requires_grad(false)).view(shape);
}

// y = weight · x̂ + bias with x̂ = (x - mean) · s, s = 1 / √(variance + ε), where mean and variance are those
// of all N values. Through them every value reaches every other:
//   dx = weight · s · (dy - Σdy / N - x̂ · Σ(dy · x̂) / N)
// With given statistics libtorch's own kernels give y, the first term, and the two sums of this rank, which
// are also the gradients of bias and weight.
struct Normalise : torch::autograd::Function<Normalise> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight,
                               const torch::Tensor& bias, const torch::Tensor& mean,
                               const torch::Tensor& variance, const c10::intrusive_ptr<Together>& together) {
    context->save_for_backward({x, weight, mean, variance});
    context->saved_data["together"] = c10::IValue::make_capsule(together);
    if (x.numel() == 0) return torch::empty_like(x);
    return std::get<0>(
        at::native_batch_norm(x, weight, bias, mean, variance, /*training=*/false, 0, together->epsilon));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto together =
        c10::static_intrusive_pointer_cast<Together>(context->saved_data["together"].toCapsule());
    if (torch::GradMode::is_enabled())
      throw UsageError(
          together->name +
          ": a gradient of its gradient is asked for (create_graph); accepted: first order only");
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    torch::Tensor dx, d_weight = torch::zeros_like(mean), d_bias = torch::zeros_like(mean);
    if (x.numel() > 0)
      std::tie(dx, d_weight, d_bias) =
          at::native_batch_norm_backward(gradients[0], x, weight, mean, variance, {}, {}, /*train=*/false,
                                         together->epsilon, {true, true, true});
    const NormGradients sums =
        gradients_of_all(together->group, {d_bias, d_weight}, together->lane_weight, together->name);
    if (x.numel() == 0) return {torch::empty_like(x), d_weight, d_bias, {}, {}, {}};
    const torch::Tensor s = (variance.to(torch::kCPU, torch::kFloat64) + together->epsilon).rsqrt();
    const torch::Tensor scale = weight.to(torch::kCPU, torch::kFloat64) * s / together->count;
    dx.sub_((x - beside(x, mean)).mul_(beside(x, scale * s * sums.normalised)));
    dx.sub_(beside(x, scale * sums.plain));
    return {dx, d_weight, d_bias, {}, {}, {}};
  }
};

bool is_narrow(torch::ScalarType type) { return type == torch::kHalf || type == torch::kBFloat16; }

// As libtorch's batch norm does, the version counter stays: who tells a checkpoint that was loaded from a
// forward (parallel/buffers.h) looks at it.
void move_towards(const torch::Tensor& running, const torch::Tensor& value, double momentum) {
  const torch::Tensor data = running.variable_data();
  data.copy_(data.to(torch::kCPU, torch::kFloat64) * (1 - momentum) + value * momentum);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_, Group group)
    : options(options_), group_(std::move(group)) {
  reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const BatchNormTensors& tensors)
    : BatchNormTensors(tensors), options(options_) {
  register_tensors();
}

void SyncBatchNormImpl::reset() {
  const std::int64_t features = options.num_features();
  BatchNormTensors& own = *this;
  own = {};
  if (options.affine()) {
    weight = torch::ones({features}, torch::requires_grad());
    bias = torch::zeros({features}, torch::requires_grad());
  }
  if (options.track_running_stats()) {
    running_mean = torch::zeros({features});
    running_var = torch::ones({features});
    num_batches_tracked = torch::zeros({}, torch::kLong);
  }
  register_tensors();
}

// In BatchNorm's order, and what is not there too.
void SyncBatchNormImpl::register_tensors() {
  const auto parameter = [&](const char* name, const torch::Tensor& tensor) {
    register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  parameter("weight", weight);
  parameter("bias", bias);
  register_buffer("running_mean", running_mean);
  register_buffer("running_var", running_var);
  register_buffer("num_batches_tracked", num_batches_tracked);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ")";
}

void SyncBatchNormImpl::join(Group group, std::string name) {
  group_ = std::move(group);
  name_ = std::move(name);
}

void SyncBatchNormImpl::check(const torch::Tensor& input) const {
  if (input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features() &&
      input.is_floating_point())
    return;
  std::ostringstream given;
  given << name_ << ": input of shape " << input.sizes() << " and type "
        << torch::toString(input.scalar_type()) << "; accepted: floating-point [batch, "
        << options.num_features() << ", …], of 2 to 5 dimensions";
  throw UsageError(given.str());
}

double SyncBatchNormImpl::begin_batch() {
  const auto momentum = options.momentum();
  if (!is_training() || !num_batches_tracked.defined()) return momentum.value_or(0);
  const torch::NoGradGuard no_grad;
  num_batches_tracked += 1;
  return momentum ? *momentum : 1 / num_batches_tracked.item<double>();  // none: the mean of all batches
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  check(input);
  if (is_training() && !group_)
    throw UsageError(name_ +
                     " has no group to take its statistics over; accepted: a norm that is in the model, or "
                     "converted, before a strategy (DataParallel) is made of it, or SyncBatchNorm(options, "
                     "world.split(0))");
  if (is_training() && group_.size() > 1) {
    if (!is_narrow(input.scalar_type())) return normalise_together(input);
    return normalise_together(input.to(torch::kFloat32)).to(input.scalar_type());
  }
  return torch::nn::functional::batch_norm(input, running_mean, running_var,
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(weight)
                                               .bias(bias)
                                               .training(is_training() || !options.track_running_stats())
                                               .momentum(begin_batch())
                                               .eps(options.eps()));
}

torch::Tensor SyncBatchNormImpl::normalise_together(const torch::Tensor& input) {
  const bool counts = lane_weight_ != 0;
  NormMoments moments;
  {
    const torch::NoGradGuard no_grad;
    moments = moments_of_all(group_, input, counts, name_);
    const double momentum = begin_batch();
    if (running_mean.defined() && moments.count > 0) {
      move_towards(running_mean, moments.mean, momentum);
      move_towards(running_var, moments.variance * (moments.count / (moments.count - 1)), momentum);
    }
  }
  auto together = c10::make_intrusive<Together>();
  together->group = group_;
  together->name = name_;
  together->lane_weight = lane_weight_;
  together->count = moments.count;
  together->epsilon = options.eps();
  const auto plain = input.options().requires_grad(false);
  const std::int64_t features = options.num_features();
  return Normalise::apply(input,
                          weight.defined() ? weight.to(input.scalar_type()) : torch::ones({features}, plain),
                          bias.defined() ? bias.to(input.scalar_type()) : torch::zeros({features}, plain),
                          moments.mean.to(plain), moments.variance.to(plain), together);
}

}  // namespace lockstep
