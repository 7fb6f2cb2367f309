// What every worker of a benchmark does.
#pragma once

#include "bench/plan.h"
#include "launch/worker_events.h"

namespace lockstep {

// Joins the other workers, measures the plan and reports what it finds. Gives 0; after reporting what went
// wrong it ends the process, with kReported where there is a parent to say it.
//
// Method. For each size every variant's result is checked; then all are timed side by side
// (bench/sampling.h); then every result is checked again.
int run_bench_worker(const BenchPlan& plan, EventReporter& reporter);

}  // namespace lockstep
