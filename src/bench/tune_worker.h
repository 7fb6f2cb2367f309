// `lockstep tune`: what its parent and its workers share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/op.h"

namespace lockstep {

struct TunePlan {
  BenchOp what = BenchOp::all_reduce;
  int workers = 2;
  std::vector<std::uint64_t> sizes;   // bytes, as `lockstep bench` counts them
  std::vector<std::string> memories;  // "comm", "private"
  double min_time_s = 0.1;            // for each algorithm, size and memory
};

// Joins the others, measures α, β, γ and every algorithm, keeps the table, then times all of it once more,
// also between the sizes, to see how good the choices are. Reports to the parent at `report_to`.
int run_tune_worker(const TunePlan& plan, const std::string& report_to);

}  // namespace lockstep
