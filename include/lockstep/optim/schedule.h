// Learning rates over a run, as a pure function: the same step of the same run has the same rate, also after
// resuming and under another number of workers.
//
//   lockstep::ScheduleOptions rate{.kind = lockstep::Schedule::cosine, .lr = 5e-4, .warmup_steps = 100};
//   optimizer.set_lr(lockstep::lr_at(rate, step.number, loader.steps()));   // in each step, before step()
//
// A rate that is right for a step of 256 samples, in a run with steps of 4096 (the linear scaling rule; Goyal
// et al.: "Accurate, Large Minibatch SGD", 2017), together with a warm-up:
//
//   const double lr = lockstep::scaled_lr(0.1, 4096.0 / 256);   // 1.6
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class Schedule {
  constant,  // lr
  cosine,    // half a cosine from lr down to final_lr
  linear,    // a straight line from lr down to final_lr
  poly,      // as the `power`th power of what is left of the run, from lr down to final_lr
  step       // lr, multiplied by `factor` every `every` steps
};

struct ScheduleOptions {
  Schedule kind = Schedule::constant;
  double lr = 1e-3;
  double final_lr = 0;            // cosine, linear, poly: the rate at total_steps and after
  std::int64_t warmup_steps = 0;  // the first steps of every kind rise in a line: lr / n, 2 lr / n … lr
  double power = 2;               // poly; 1 is linear
  std::int64_t every = 0;         // step: counted from the run's start; at least 1
  double factor = 0.1;            // step
};

// Throws UsageError that names the option and the accepted range.
void check(const ScheduleOptions& options);

// The rate of step `step` (0, 1 … ) in a run of `total_steps`. Cosine, linear and poly run from the end of
// the warm-up to total_steps; one that is longer than the run never gets to lr. Checks `options` first; a
// negative step or total is a UsageError too.
double lr_at(const ScheduleOptions& options, std::int64_t step, std::int64_t total_steps);

// Whether the rate of a step depends on total_steps.
bool depends_on_length(Schedule schedule);

// What a base rate becomes when a step has `times` as many samples: times as large, or times its square root.
enum class LrScaling : std::uint8_t { linear, square_root };
double scaled_lr(double base_lr, double times, LrScaling scaling = LrScaling::linear);

const char* to_string(Schedule schedule);        // "constant", "cosine", "linear", "poly", "step"
Schedule parse_schedule(std::string_view text);  // throws UsageError that lists the names

}  // namespace lockstep
