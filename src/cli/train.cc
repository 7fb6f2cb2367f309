// `lockstep train`: the parent starts the workers and shows what rank 0 reports. Under a launcher it is a
// worker itself, and rank 0 shows.
#include "cli/train.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench_link.h"
#include "cli/bench_start.h"
#include "cli/command.h"
#include "cli/printer.h"
#include "cli/train_flags.h"
#include "cli/train_program.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

Json request_of(const TrainOptions& options, const Given& given, bool json) {
  return {{"options", to_json(options)}, {"given", given}, {"json", json}};
}

// The failure that explains the others: what a worker met itself before what it heard from its peers.
int explain(const char* what, const TrainReport& report, const Starter& starter, int wait_status) {
  std::vector<WorkerError> own, heard;
  for (const WorkerError& error : report.errors)
    (error.kind == "peer" || error.kind == "timeout" ? heard : own).push_back(error);
  std::vector<WorkerError>& shown = own.empty() ? heard : own;
  if (shown.size() > 1) shown.resize(1);
  return conclude(what, shown, starter, wait_status);
}

int run_train(TrainFlags& flags) {
  const Given given = flags.gather();
  TrainOptions checked = flags.options;
  // Else it depends on the checkpoint.
  if (flags.options.resume.empty() && flags.options.init.empty()) check_options(checked);
  const Identity identity = Identity::from_environment();
  const bool launched = identity.launcher != "none";
  // Before the workers are started, and all load libtorch.
  if (checked.resume.empty()) check_lanes(checked, launched ? identity.size : checked.workers);
  if (launched) {
    if (flags.options.workers != 0 && flags.options.workers != identity.size)
      throw UsageError(fmt::format("-n (--workers) {} is not what {} started: {}", flags.options.workers,
                                   identity.launcher, identity.size));
    become_train_program("train", request_of(flags.options, given, flags.json));
  }
  TrainReport report(flags.json ? Show::json : Show::text);
  return start_training(flags.options, given, report, "train");
}

}  // namespace

int start_training(const TrainOptions& options, const Given& given, TrainReport& report, const char* what) {
  BenchListener listener;
  Json request = request_of(options, given, false);
  request["report_to"] = listener.name();
  const Starter starter =
      start_workers({.program = train_program("train", request),
                     .workers = options.workers == 0 ? 1 : static_cast<int>(options.workers),
                     .pinning = Pinning::cores,
                     .grace = std::chrono::minutes(2)});
  report.give_up_when([&] { return listener.interrupted_by() != 0 || stop_is_pending(); });
  const int status = listener.serve(starter.pid, [&](const Json& event) { report.handle(event); });
  report.give_up_when([told = listener.interrupted_by() != 0] { return told; });
  report.finish();
  if (report.stopped_by() != 0) return 128 + report.stopped_by();
  if (report.done() && status == 0) return 0;
  if (listener.interrupted_by() != 0 && report.errors.empty()) {
    std::fprintf(stderr, "lockstep %s: stopped by signal %d\n", what, listener.interrupted_by());
    return 128 + listener.interrupted_by();
  }
  return explain(what, report, starter, status);
}

void add_train(Cli& cli) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command =
      cli.app.add_subcommand("train", "Train a model on N workers, the same bits for every N");
  command->group(kTrain);
  command->get_formatter()->column_width(34);
  add_train_flags(*command, *flags);
  command->footer(
      "A run is defined by its lanes, not by its workers: with the same --lanes, --lane-batch and --seed "
      "any\n"
      "number of workers gives the same weights, bit for bit. Ctrl-C ends the step, writes a checkpoint and "
      "says\n"
      "how to resume (exit status 128 + signal); a second one stops at once. The run's folder holds "
      "index.html\n"
      "with the plots, summary.json, steps.csv, epochs.csv, buckets.csv, latency.csv, trace.json (for\n"
      "ui.perfetto.dev) and checkpoints/.\n"
      "\n"
      "Examples:\n"
      "  lockstep train --model resnet18 --data shapes -n 2 --accumulate 2 --epochs 3 --out runs/first\n"
      "  lockstep train --model gpt --data book.txt -n 2 --lanes 8 --lane-batch 8 --steps 500 --dropout 0.1\n"
      "  lockstep train --resume runs/first -n 4             go on, also with another number of workers\n"
      "  lockstep train --init runs/first --data other --lr 1e-4   a new run from old weights\n"
      "  lockstep train --config recipe.toml --lr 1e-3       a file with any of the flags; flags win\n"
      "  torchrun --no-python --nproc_per_node=2 lockstep train --model mlp --data synthetic --steps 50");
  command->callback([&cli, flags] { cli.action = [flags] { return run_train(*flags); }; });
}

}  // namespace lockstep::cli
