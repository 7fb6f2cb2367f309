#include "lockstep/optim/onebit_adam.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "optim/require.h"
#include "optim/slot.h"

namespace lockstep {
namespace {

// Pass::way
constexpr int kDense = 0;     // Adam
constexpr int kGradient = 1;  // the variance is frozen, what came is a gradient
constexpr int kMomentum = 2;  // what came is the momentum

std::shared_ptr<MomentumExchange> momenta_of(const Exchange& exchange) {
  if (!exchange.momenta)
    throw UsageError(
        fmt::format("OneBitAdam: the exchange '{}' carries no momenta; accepted: "
                    "compressed({{.method = \"onebit-adam\"}})",
                    exchange.name));
  return exchange.momenta;
}

std::vector<std::string> state_of(const OneBitAdamOptions& options) {
  require(options.beta2 >= 0 && options.beta2 < 1, "OneBitAdam", "beta2", options.beta2,
          "0 or more and less than 1");
  require_at_least_zero("OneBitAdam", "eps", options.eps);
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace

OneBitAdam::OneBitAdam(GradientSource& source, const Exchange& exchange, OneBitAdamOptions options)
    : Optimizer(source,
                {"OneBitAdam", state_of(options), options.lr, options.weight_decay, options.master_weights}),
      options_(options),
      momenta_(momenta_of(exchange)) {}

void OneBitAdam::adapt(std::span<Update> updates) {
  for (Update& each : updates) {
    require(each.elements.gradient_factor == 1, "OneBitAdam", "gradient_scale",
            1 / each.elements.gradient_factor, "1: a momentum outlives the scale of its loss");
    const auto i = static_cast<std::size_t>(&each.slot - slots_.data());
    each.pass.way = !momenta_->begun() ? kDense : momenta_->carries(i) ? kMomentum : kGradient;
  }
}

// Adam's pass does all three: with a beta of 0 what came is the momentum, with one of 1 the variance stays.
void OneBitAdam::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  const double beta1 = momenta_->beta1(), beta2 = options_.beta2;
  const bool dense = pass.way == kDense;
  kernel::update(list, kernel::AdamUpdate{.beta1 = pass.way == kMomentum ? 0 : beta1,
                                          .beta2 = dense ? beta2 : 1,
                                          .eps = options_.eps,
                                          .step_size = pass.lr / (1 - std::pow(beta1, pass.step)),
                                          .correction = dense ? std::sqrt(1 - std::pow(beta2, pass.step)) : 1,
                                          .keep = 1 - pass.lr * pass.weight_decay});
}

// Behind the dense phase's last step: the variance is frozen, and the exchange gets the momenta.
void OneBitAdam::updated() {
  if (!momenta_->is_due()) return;
  std::vector<torch::Tensor> parts;
  for (Slot& slot : slots_) {
    torch::Tensor& variance = slot.state[1];
    if (slot.step > 0) variance.div_(1 - std::pow(options_.beta2, slot.step));
    variance.masked_fill_(variance.eq(0), std::numeric_limits<double>::infinity());
    parts.push_back(slot.state[0]);
  }
  source_->join(parts, [&](std::size_t i, const torch::Tensor& whole) { momenta_->take(i, whole); });
  momenta_->begin_momenta();
}

}  // namespace lockstep
