// What a benchmark is to measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/op.h"

namespace lockstep {

struct BenchPlan {
  BenchOp what = BenchOp::all_reduce;
  int workers = 2;
  std::vector<std::uint64_t> sizes;     // bytes, ascending, no two alike; {0} for barrier
  std::vector<std::string> engines;     // of built_engines(); shm: the job's own
  std::string own_engine;               // which that is; empty: LOCKSTEP_ENGINE's
  std::vector<std::string> algorithms;  // "auto", "all" or names; the workers know which exist
  std::vector<std::string> memories;    // "comm", "private"
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int iterations = 0;       // samples of each variant and size; 0: by time
  double min_time_s = 0.3;  // for each variant and size
  int warmup = 3;
  bool rewrite = false;  // every rank writes its input anew before each call

  bool has_engine(const std::string& name) const;
};

// Engines of this build, ours first.
std::vector<std::string> built_engines();

}  // namespace lockstep
