// What every worker of a benchmark does.
#pragma once

#include <string>

#include "cli/bench_plan.h"

namespace lockstep::cli {

// Joins the other workers, measures the plan and reports to the parent that listens at `report_to`.
// Gives the exit status: 0, or kReported after telling the parent what went wrong.
//
// Method. For each size every variant's result is checked; then all are timed side by side
// (cli/sampling.h); then every result is checked again.
int run_bench_worker(const BenchPlan& plan, const std::string& report_to);

}  // namespace lockstep::cli
