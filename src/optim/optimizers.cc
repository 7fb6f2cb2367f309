// SGD, Adam and AdamW: what each makes of its options at a given step. The numbers are computed as libtorch
// computes them, in double.
#include <cmath>

#include "lockstep/optim/optimizer.h"
#include "optim/require.h"
#include "optim/update.h"

namespace lockstep {
namespace {

// Checks the options, and names the state that they need.
std::vector<std::string> state_of(const SGDOptions& options) {
  require_at_least_zero("SGD", "momentum", options.momentum);
  require(std::isfinite(options.dampening), "SGD", "dampening", options.dampening, "a finite number");
  if (options.nesterov) {
    require(options.momentum > 0, "SGD", "momentum", options.momentum, "more than 0 with nesterov");
    require(options.dampening == 0, "SGD", "dampening", options.dampening, "0 with nesterov");
  }
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

template <class Options>
std::vector<std::string> state_of(const char* name, const Options& options) {
  const char* const range = "0 or more and less than 1";
  require(options.beta1 >= 0 && options.beta1 < 1, name, "beta1", options.beta1, range);
  require(options.beta2 >= 0 && options.beta2 < 1, name, "beta2", options.beta2, range);
  require_at_least_zero(name, "eps", options.eps);
  return {"exp_avg", "exp_avg_sq"};
}

// What Adam and AdamW have in common.
template <class Options>
kernel::AdamUpdate adam_update(const Options& options, std::int64_t step, double lr) {
  const double correction1 = 1 - std::pow(options.beta1, step);
  const double correction2 = 1 - std::pow(options.beta2, step);
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .step_size = lr / correction1,
          .correction = std::sqrt(correction2)};
}

}  // namespace

SGD::SGD(GradientSource& source, SGDOptions options)
    : Optimizer(source, {"SGD", state_of(options), options.lr, options.weight_decay, options.master_weights,
                         options.offload}),
      options_(options) {}

SGD::SGD(const std::vector<NamedTensor>& parameters, SGDOptions options)
    : Optimizer(parameters, {"SGD", state_of(options), options.lr, options.weight_decay,
                             options.master_weights, options.offload}),
      options_(options) {}

void SGD::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  using kernel::Momentum;
  Momentum kind = Momentum::none;
  if (options_.momentum != 0)
    kind = pass.step == 1 ? (options_.nesterov ? Momentum::start_nesterov : Momentum::start)
                          : (options_.nesterov ? Momentum::keep_nesterov : Momentum::keep);
  kernel::update(list, kernel::SgdUpdate{.kind = kind,
                                         .lr = pass.lr,
                                         .momentum = options_.momentum,
                                         .gain = 1 - options_.dampening,
                                         .weight_decay = pass.weight_decay});
}

Adam::Adam(GradientSource& source, AdamOptions options)
    : Optimizer(source, {"Adam", state_of("Adam", options), options.lr, options.weight_decay,
                         options.master_weights, options.offload}),
      options_(options) {}

Adam::Adam(const std::vector<NamedTensor>& parameters, AdamOptions options)
    : Optimizer(parameters, {"Adam", state_of("Adam", options), options.lr, options.weight_decay,
                             options.master_weights, options.offload}),
      options_(options) {}

void Adam::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  kernel::AdamUpdate adam = adam_update(options_, pass.step, pass.lr);
  adam.weight_decay = pass.weight_decay;
  kernel::update(list, adam);
}

AdamW::AdamW(GradientSource& source, AdamWOptions options)
    : Optimizer(source, {"AdamW", state_of("AdamW", options), options.lr, options.weight_decay,
                         options.master_weights, options.offload}),
      options_(options) {}

AdamW::AdamW(const std::vector<NamedTensor>& parameters, AdamWOptions options)
    : Optimizer(parameters, {"AdamW", state_of("AdamW", options), options.lr, options.weight_decay,
                             options.master_weights, options.offload}),
      options_(options) {}

void AdamW::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  kernel::AdamUpdate adam = adam_update(options_, pass.step, pass.lr);
  adam.keep = 1 - pass.lr * pass.weight_decay;
  kernel::update(list, adam);
}

}  // namespace lockstep
