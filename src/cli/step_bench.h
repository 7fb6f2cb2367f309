// `lockstep bench step`: what its two halves share.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::cli {

// A worker. The request holds the options and where the parent listens. Gives the exit status; throws Error.
int run_step_bench_worker(const nlohmann::ordered_json& request);

}  // namespace lockstep::cli
