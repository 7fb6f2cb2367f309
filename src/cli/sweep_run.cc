#include "cli/sweep_run.h"

#include <cstdio>

#include "cli/train.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

constexpr std::int64_t kOnlyAtTheEnd = std::int64_t{1} << 40;  // epochs between evaluations

}  // namespace

Given gather_sweep(TrainFlags& flags) {
  if (Identity::from_environment().launcher != "none")
    throw UsageError("sweep starts its own workers (-n); it is not for a launcher");
  const Given given = flags.gather();
  TrainOptions& base = flags.options;
  if (!base.resume.empty()) throw UsageError("--resume: a sweep starts every run anew");
  if (!given.contains("eval_every")) base.eval_every = kOnlyAtTheEnd;
  if (!given.contains("checkpoint_every")) base.checkpoint_every = -1;
  return given;
}

void add_recipe_flags(CLI::App& command, BatchSweep& sweep) {
  command.add_option("--warmup-part", sweep.warmup_part, "of a run's steps that its warm-up takes")
      ->capture_default_str();
  command.add_option("--lars-lr", sweep.lars_lr, "LARS's rate at the base batch; it grows with the batch")
      ->capture_default_str();
  command.add_option("--lamb-lr", sweep.lamb_lr, "LAMB's; it grows with the batch's square root")
      ->capture_default_str();
}

int run_of_sweep(const BatchRun& run, Given given, const char* command, BatchSweepRow& row) {
  given.insert("out");
  RunDisplay report(Show::nothing);
  const int status = start_training(run.options, given, report, command);
  const std::filesystem::path folder = run.options.out;
  if (status != 0 && (status != 1 || !stopped_not_finite(folder))) return status;
  row = read_batch_run(folder, status == 0);
  row.factor = run.factor;
  row.batch = run.batch;
  row.recipe = run.recipe;
  row.precision = run.options.precision;
  row.warmup_steps = run.options.warmup_steps;
  row.lr = *run.options.lr;
  return 0;
}

int end_early(const char* command, const std::filesystem::path& folder, std::size_t done, std::size_t runs,
              int status) {
  if (done > 0)
    std::fprintf(stderr, "lockstep %s: %zu of %zu runs are in %s\n", command, done, runs,
                 (folder / "sweep.csv").c_str());
  return status;
}

}  // namespace lockstep::cli
