// What `sweep batch` and `sweep compress` share: the same runs, told apart by what is swept.
#pragma once

#include <filesystem>

#include "cli/train_flags.h"
#include "recipe/batch_sweep.h"
#include "report/batch_sweep.h"

namespace lockstep::cli {

// The flags of every sweep of whole runs, with what such runs are unless told otherwise: evaluated at their
// end, without checkpoints. Throws UsageError where a sweep can't be.
Given gather_sweep(TrainFlags& flags);
// How the rate follows the batch.
void add_recipe_flags(CLI::App& command, BatchSweep& sweep);

// Trains one run of the table. A run whose loss is no number any more is a row, too; any other failure ends
// the sweep: its status, after one line on standard error.
int run_of_sweep(const BatchRun& run, Given given, const char* command, BatchSweepRow& row);
// How many of the runs a sweep that ends early has, where it has any. Returns `status`.
int end_early(const char* command, const std::filesystem::path& folder, std::size_t done, std::size_t runs,
              int status);

}  // namespace lockstep::cli
