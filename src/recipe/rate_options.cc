#include "recipe/rate_options.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void check_base(const TrainOptions& o) {
  if (o.lr && o.base_lr)
    throw UsageError(fmt::format("--lr {} and --base-lr {} both say the learning rate; accepted: one of them",
                                 *o.lr, *o.base_lr));
  if (o.base_lr && o.base_batch == 0)
    throw UsageError(fmt::format(
        "--base-lr {} needs --base-batch, the samples of a step for which that rate is right", *o.base_lr));
  if (o.base_batch != 0 && !o.base_lr)
    throw UsageError(
        fmt::format("--base-batch {} needs --base-lr, the rate that is right for it", o.base_batch));
}

// How many steps an epoch has only the data says, so the rest is checked when it is there.
void check_warmup(const TrainOptions& o) {
  if (o.warmup_steps != 0 && o.warmup_epochs != 0)
    throw UsageError(
        fmt::format("--warmup-steps {} and --warmup-epochs {} both say how long the rate rises; accepted: "
                    "one of them",
                    o.warmup_steps, o.warmup_epochs));
  if (o.steps != 0 && o.warmup_steps > o.steps)
    throw UsageError(
        fmt::format("--warmup-steps {} is longer than the run of --steps {}; accepted: {} at most",
                    o.warmup_steps, o.steps, o.steps));
  if (o.steps == 0 && o.warmup_epochs > static_cast<double>(o.epochs))
    throw UsageError(
        fmt::format("--warmup-epochs {} is longer than the run of --epochs {}; accepted: {} at most",
                    o.warmup_epochs, o.epochs, o.epochs));
}

double default_lr(const std::string& optimizer) {
  if (optimizer.ends_with("sgd")) return 0.05;
  if (optimizer == "lars") return 1;
  return optimizer == "lamb" ? 2e-3 : 5e-4;
}

double default_decay(const std::string& optimizer) {
  if (optimizer == "lamb") return 1e-2;
  return optimizer.ends_with("adamw") || optimizer == "lars" ? 1e-4 : 0;
}

}  // namespace

bool is_layerwise(const TrainOptions& o) { return o.optimizer == "lars" || o.optimizer == "lamb"; }

bool falls_to_end(const TrainOptions& o) {
  return o.schedule == "cosine" || o.schedule == "linear" || o.schedule == "poly";
}

void settle_rate(TrainOptions& o) {
  check_base(o);
  check_warmup(o);
  if (o.clip_norm != 0 && o.clip_value != 0)
    throw UsageError(
        fmt::format("--clip-norm {} and --clip-value {} both clip gradients; accepted: one of them",
                    o.clip_norm, o.clip_value));
  if (!o.lr && !o.base_lr) o.lr = default_lr(o.optimizer);
  if (o.lr && o.min_lr > *o.lr)
    throw UsageError(fmt::format("--min-lr {} is above --lr {}, from which the rate falls; accepted: 0 to {}",
                                 o.min_lr, *o.lr, *o.lr));
  if (!o.weight_decay) o.weight_decay = default_decay(o.optimizer);
  if (o.exclude.empty()) o.exclude = is_layerwise(o) ? "1-d" : "none";
}

}  // namespace lockstep
