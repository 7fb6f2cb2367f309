// Learning rates over a run, as a pure function: the same step of the same run has the same rate, also after
// resuming and under another number of workers.
//
//   optimizer.set_lr(lr_at({.kind = Schedule::cosine, .lr = 5e-4, .warmup_steps = 100}, step, total_steps));
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class Schedule {
  constant,  // lr
  cosine,    // half a cosine from lr down to final_lr
  linear,    // a straight line from lr down to final_lr
  step       // lr, multiplied by `factor` every `every` steps
};

struct ScheduleOptions {
  Schedule kind = Schedule::constant;
  double lr = 1e-3;
  double final_lr = 0;            // cosine, linear: the rate at total_steps and after
  std::int64_t warmup_steps = 0;  // the first steps of every kind rise in a line: lr / n, 2 lr / n … lr
  std::int64_t every = 0;         // step: counted from the run's start; at least 1
  double factor = 0.1;            // step
};

// Throws UsageError that names the option and the accepted range.
void check(const ScheduleOptions& options);

// The rate of step `step` (0, 1 … ) in a run of `total_steps`. Cosine and linear run from the end of the
// warm-up to total_steps. Checks `options` first; a negative step or total is a UsageError too.
double lr_at(const ScheduleOptions& options, std::int64_t step, std::int64_t total_steps);

const char* to_string(Schedule schedule);        // "constant", "cosine", "linear", "step"
Schedule parse_schedule(std::string_view text);  // throws UsageError that lists the names

}  // namespace lockstep
