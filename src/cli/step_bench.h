// `lockstep bench step`: what its two halves share.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::cli {

// A worker. The request holds the options, and where the parent listens; without a parent, in a job that was
// started already, rank 0 prints the row, as JSON when the request says so. Gives the exit status; throws
// Error.
int run_step_bench_worker(const nlohmann::ordered_json& request);

void print_step_row(const nlohmann::ordered_json& row, bool json);

}  // namespace lockstep::cli
