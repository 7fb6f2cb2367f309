// The runs of `lockstep sweep batch`: every batch with every recipe for its learning rate, and every
// precision, over the same number of examples.
//
// A batch grows by its lanes, as it does with more workers: what a lane sees, batch norm's statistics too,
// stays what it was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipe/train_options.h"

namespace lockstep {

// What becomes of the optimizer and its rate at k times the base batch:
//   fixed    the base rate
//   linear   k times the base rate
//   warmup   the same, reached over the first steps
//   lars     LARS at k times its own base rate, with that warm-up
//   lamb     LAMB at √k times its own base rate, with that warm-up
std::vector<std::string> batch_recipes();

struct BatchSweep {
  std::vector<std::int64_t> factors = {1, 2, 4, 8, 16, 32};
  std::vector<std::string> recipes = batch_recipes();
  std::vector<std::string> precisions = {};  // none: the options' own
  double warmup_part = 0.1;                  // of the steps of a run
  double lars_lr = 1;                        // at the base batch
  double lamb_lr = 2e-3;
};

// One run of the table.
struct BatchRun {
  std::int64_t factor = 1;  // of the base batch
  std::int64_t batch = 0;
  std::string recipe;
  TrainOptions options;  // checked, but for what only a worker knows; `out` is left to the caller
};

// Ascending in the factor. `base`: the run at 1×, by --steps, or by --epochs and --examples. Throws
// UsageError that names what the table can't be made of.
std::vector<BatchRun> batch_runs(const TrainOptions& base, const BatchSweep& sweep);

// "1,2,4" as numbers. Throws UsageError.
std::vector<std::int64_t> parse_factors(const std::string& text);

}  // namespace lockstep
