// What every worker of a benchmark does.
#pragma once

#include <string>

#include "cli/bench_plan.h"

namespace lockstep::cli {

// Joins the other workers, measures the plan and reports to the parent that listens at `report_to`.
// Gives the exit status: 0, or kReported after telling the parent what went wrong.
//
// Method. For each size every variant's result is checked, then warmed up; then come rounds, in each of
// which every variant runs a batch, the order rotating, so that what changes on the machine meanwhile
// hits all alike. A sample is: barrier (ours), clock, one call, clock; its time is the slowest rank's.
// A batch starts with a call that is not timed, so that each variant finds its own data in the caches.
// After the last round every result is checked again.
int run_bench_worker(const BenchPlan& plan, const std::string& report_to);

}  // namespace lockstep::cli
