// The command line of `lockstep bench`, understood and checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/plan.h"

namespace lockstep::cli {

// The flags as they were written.
struct BenchFlags {
  std::string collective;
  int workers = 2;
  std::string sizes = "4K,64K,1M,4M,25M";
  std::string engines;  // empty: all that are built
  std::string algorithms = "auto";
  std::string memory = "comm";
  std::string dtype = "f32";
  std::string op = "sum";
  int iterations = 0;
  double min_time_s = 0.3;
  int warmup = 3;
  bool rewrite = false;
  std::string plot;
  bool json = false;
  std::string report_to;  // set for workers only: where the parent listens
};

// Throws UsageError that names the flag, its value and what is accepted.
BenchPlan make_plan(const BenchFlags& flags);

}  // namespace lockstep::cli
