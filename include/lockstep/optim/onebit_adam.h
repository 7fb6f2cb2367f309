// 1-bit Adam (Tang et al.: "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
// Speed", 2021): Adam whose gradients are too different from step to step to be one bit each, and whose
// momentum is not.
//
//   auto exchange = compressed({.method = "onebit-adam:warmup=1000", .lanes = 8});  // the loader's lanes
//   DataParallel ddp(model, world, {.exchange = exchange});
//   OneBitAdam optimizer(ddp, {.lr = 1e-3});
//
// The dense phase, of `warmup` steps, is Adam, bit for bit, and gradients travel as they are. Then the
// variance stays what it is, and the workers exchange the momentum, a bit an element, with what that leaves
// out fed back on both sides (docs/compression.md):
//
//   dense    m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g²,  v̂ = v / (1 - beta2^t)
//   then     m = what the exchange makes of the workers' beta1 m + (1 - beta1) g,  v̂ of the dense phase's end
//   both     p = p (1 - lr weight_decay) - lr m / (1 - beta1^t) / (sqrt(v̂) + eps)
//
// Parameters that the exchange leaves as they are (small ones, rules with `none`) take part with the
// gradient's mean and a frozen variance. An element that had no gradient in the dense phase stays where it
// is: its variance is 0, and one bit can't say that its momentum is.
//
// beta1 and the length of the dense phase are the exchange's. What comes out of it is no gradient after the
// dense phase, so it is not to be clipped, and a scaled loss is refused. State as Adam's; at the end of the
// dense phase "exp_avg_sq" becomes v̂, infinite where it was 0. The same bits under every strategy and
// on any number of workers.
#pragma once

#include <memory>

#include "lockstep/grad/exchange.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

struct OneBitAdamOptions {
  double lr = 1e-3;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // taken off the parameter
  MasterWeights master_weights = MasterWeights::none;
};

class OneBitAdam final : public Optimizer {
 public:
  // A strategy, whose exchange is compressed() by onebit-adam. Throws UsageError for another.
  template <class Source>
  explicit OneBitAdam(Source& strategy, OneBitAdamOptions options = {})
      : OneBitAdam(strategy, strategy.exchange(), options) {}
  OneBitAdam(GradientSource& source, const Exchange& exchange, OneBitAdamOptions options = {});

 private:
  void adapt(std::span<Update> updates) override;
  void update(std::span<const kernel::Elements> list, const Pass& pass) const override;
  void updated() override;
  OneBitAdamOptions options_;
  std::shared_ptr<MomentumExchange> momenta_;
};

}  // namespace lockstep
