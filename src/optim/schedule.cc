#include "lockstep/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "optim/require.h"

namespace lockstep {
namespace {

constexpr Schedule kAllSchedules[] = {Schedule::constant, Schedule::cosine, Schedule::linear, Schedule::poly,
                                      Schedule::step};

constexpr const char* kWhose = "learning-rate schedule";

// 0 at the end of the warm-up, 1 at total_steps and after.
double progress(const ScheduleOptions& options, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t length = total_steps - options.warmup_steps;
  if (length <= 0) return 1;
  return std::min(1.0, static_cast<double>(step - options.warmup_steps) / static_cast<double>(length));
}

}  // namespace

void check(const ScheduleOptions& options) {
  require_at_least_zero(kWhose, "lr", options.lr);
  require_at_least_zero(kWhose, "final_lr", options.final_lr);
  require_at_least_zero(kWhose, "warmup_steps", static_cast<double>(options.warmup_steps));
  require_at_least_zero(kWhose, "power", options.power);
  if (options.kind != Schedule::step) return;
  require(options.every >= 1, kWhose, "every", static_cast<double>(options.every), "1 or more steps");
  require_at_least_zero(kWhose, "factor", options.factor);
}

double lr_at(const ScheduleOptions& options, std::int64_t step, std::int64_t total_steps) {
  check(options);
  require_at_least_zero(kWhose, "the step", static_cast<double>(step));
  require_at_least_zero(kWhose, "the number of steps", static_cast<double>(total_steps));
  if (step < options.warmup_steps)
    return options.lr * (static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps));
  const double span = options.lr - options.final_lr;
  switch (options.kind) {
    case Schedule::constant: return options.lr;
    case Schedule::cosine: {
      const double t = progress(options, step, total_steps);
      return t >= 1 ? options.final_lr : options.final_lr + span * 0.5 * (1 + std::cos(std::numbers::pi * t));
    }
    case Schedule::linear: return options.final_lr + span * (1 - progress(options, step, total_steps));
    case Schedule::poly: {
      const double left = 1 - progress(options, step, total_steps);
      return left <= 0 ? options.final_lr : options.final_lr + span * std::pow(left, options.power);
    }
    case Schedule::step: {
      const std::int64_t drops = step / options.every;
      return options.lr * std::pow(options.factor, static_cast<double>(drops));
    }
  }
  throw UsageError("learning-rate schedule: unknown kind; accepted: constant, cosine, linear, poly, step");
}

bool depends_on_length(Schedule schedule) {
  return schedule == Schedule::cosine || schedule == Schedule::linear || schedule == Schedule::poly;
}

double scaled_lr(double base_lr, double times, LrScaling scaling) {
  require_at_least_zero(kWhose, "base_lr", base_lr);
  require_at_least_zero(kWhose, "times", times);
  return base_lr * (scaling == LrScaling::linear ? times : std::sqrt(times));
}

const char* to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::constant: return "constant";
    case Schedule::cosine: return "cosine";
    case Schedule::linear: return "linear";
    case Schedule::poly: return "poly";
    case Schedule::step: return "step";
  }
  return "?";
}

Schedule parse_schedule(std::string_view text) {
  for (const Schedule schedule : kAllSchedules)
    if (text == to_string(schedule)) return schedule;
  throw UsageError(
      fmt::format("learning-rate schedule '{}'; accepted: constant, cosine, linear, poly, step", text));
}

}  // namespace lockstep
