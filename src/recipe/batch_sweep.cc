#include "recipe/batch_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/split.h"
#include "base/suggest.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Steps of the run at 1×.
std::int64_t base_steps(const TrainOptions& base, std::int64_t batch) {
  if (base.steps != 0) return base.steps;
  if (base.examples == 0 || base.epochs == 0)
    throw UsageError(
        "how many examples each run sees is not said; accepted: --steps (of the base batch), or --examples "
        "and "
        "--epochs");
  return base.examples * base.epochs / batch;
}

double base_rate(const TrainOptions& base) {
  TrainOptions filled = base;
  check_options(filled);
  return *filled.lr;
}

std::int64_t warm_up(double part, std::int64_t steps) {
  const auto rounded = static_cast<std::int64_t>(std::llround(part * static_cast<double>(steps)));
  return std::clamp<std::int64_t>(rounded, part > 0 && steps > 1 ? 1 : 0, steps - 1);
}

double needed(const char* flag, double rate, const std::string& recipe) {
  if (!(rate > 0 && rate <= 1e6))
    throw UsageError(fmt::format(
        "{} '{}' is out of range, and --recipes has {}; accepted: above 0, at most 1e6", flag, rate, recipe));
  return rate;
}

// The optimizer and its rate at `factor` times the base batch, in a run of o.steps.
void apply(const std::string& recipe, double factor, double rate, const BatchSweep& sweep, TrainOptions& o) {
  o.lr = recipe == "fixed" ? rate : factor * rate;
  if (recipe == "lars" || recipe == "lamb") {
    o.optimizer = recipe;
    o.nesterov = false;
    o.lr = recipe == "lars" ? factor * needed("--lars-lr", sweep.lars_lr, recipe)
                            : std::sqrt(factor) * needed("--lamb-lr", sweep.lamb_lr, recipe);
  }
  if (recipe != "fixed" && recipe != "linear") o.warmup_steps = warm_up(sweep.warmup_part, o.steps);
}

}  // namespace

std::vector<std::string> batch_recipes() { return {"fixed", "linear", "warmup", "lars", "lamb"}; }

std::vector<std::int64_t> parse_factors(const std::string& text) {
  std::vector<std::int64_t> factors;
  for (const std::string& word : split_at_commas(text)) {
    std::int64_t factor = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), factor);
    if (error != std::errc() || end != word.data() + word.size() || factor < 1 || factor > 1 << 16)
      throw UsageError(
          fmt::format("--factors '{}': '{}' is not understood; accepted: whole numbers from 1 to 65536, for "
                      "example 1,2,4,8",
                      text, word));
    factors.push_back(factor);
  }
  std::ranges::sort(factors);
  factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
  return factors;
}

std::vector<BatchRun> batch_runs(const TrainOptions& base, const BatchSweep& sweep) {
  for (const std::string& recipe : sweep.recipes) expect_one_of("--recipes", recipe, batch_recipes());
  if (base.base_lr)
    throw UsageError(
        "--base-lr: the recipes say how the rate follows the batch; accepted: --lr, that of the base batch");
  if (base.warmup_steps != 0 || base.warmup_epochs != 0)
    throw UsageError(fmt::format(
        "{}: the recipes say which runs begin with a warm-up; accepted: --warmup-part, of a run's steps",
        base.warmup_steps != 0 ? "--warmup-steps" : "--warmup-epochs"));
  if (!(sweep.warmup_part >= 0 && sweep.warmup_part < 1))
    throw UsageError(
        fmt::format("--warmup-part '{}' is out of range; accepted: 0 to below 1", sweep.warmup_part));
  if (sweep.factors.empty() || sweep.recipes.empty())
    throw UsageError("--factors and --recipes: one of each is needed at least");
  const std::int64_t lanes =
      base.lanes != 0 ? base.lanes : std::max<std::int64_t>(1, base.workers) * base.accumulate;
  const std::int64_t batch = lanes * base.lane_batch, steps = base_steps(base, batch);
  const double rate = base_rate(base);
  std::vector<BatchRun> runs;
  for (const std::int64_t factor : sweep.factors) {
    if (steps % factor != 0 || steps == 0)
      throw UsageError(
          fmt::format("{} steps of the base batch {} are no whole number of steps at {} times that; "
                      "accepted: a multiple of {} "
                      "(--steps, or --examples and --epochs)",
                      steps, batch, factor, factor));
    for (const std::string& precision :
         sweep.precisions.empty() ? std::vector<std::string>{base.precision} : sweep.precisions)
      for (const std::string& recipe : sweep.recipes) {
        BatchRun run{.factor = factor, .batch = factor * batch, .recipe = recipe, .options = base};
        TrainOptions& o = run.options;
        o.lanes = factor * lanes;
        o.steps = steps / factor;
        o.epochs = 0;
        o.precision = precision;
        apply(recipe, static_cast<double>(factor), rate, sweep, o);
        TrainOptions checked = o;
        check_options(checked);
        check_lanes(checked, checked.workers);
        runs.push_back(std::move(run));
      }
  }
  return runs;
}

}  // namespace lockstep
