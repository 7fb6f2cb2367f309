// `lockstep sweep compress`: what each method of compression costs in quality, bytes and time, at several
// batches.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "base/split.h"
#include "cli/command.h"
#include "cli/sweep_folder.h"
#include "cli/sweep_run.h"
#include "lockstep/base/error.h"
#include "recipe/engine_flag.h"
#include "report/compress_sweep.h"
#include "report/folder_lock.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct CompressSweepFlags {
  TrainFlags train;
  BatchSweep sweep;
  std::string methods = "none,bf16";
  std::string factors = "1";
  std::string recipe = "linear";
};

constexpr SweepFile kCompressSweepFiles[] = {{"sweep.csv", "method,factor,batch,"},
                                             {"sweep.svg", "against bytes sent"}};

// A method as a part of a folder's name.
std::string as_folder(std::string method) {
  std::ranges::replace_if(
      method, [](char c) { return c == '/' || c == ':' || c == '*' || c == '='; }, '-');
  return method;
}

// Every batch with every method, the batch's runs together. Refuses what can't be before the first run.
std::vector<BatchRun> compress_runs(const TrainOptions& base, const CompressSweepFlags& flags) {
  std::vector<std::string> methods = split_at_commas(flags.methods);
  if (std::ranges::find(methods, "") != methods.end())
    throw UsageError(
        fmt::format("--methods '{}' has an empty item; write them as none,int8,topk:0.01", flags.methods));
  BatchSweep sweep = flags.sweep;
  sweep.recipes = {flags.recipe};
  std::vector<BatchRun> runs;
  for (const std::int64_t factor : parse_factors(flags.factors))
    for (const std::string& method : methods) {
      TrainOptions options = base;
      options.compress = method;
      sweep.factors = {factor};
      runs.push_back(batch_runs(options, sweep).at(0));
    }
  return runs;
}

int run_compress_sweep(CompressSweepFlags& flags) {
  const Given given = gather_sweep(flags.train);
  TrainOptions& base = flags.train.options;
  if (given.contains("compress")) throw UsageError("--compress: a sweep has --methods in its place");
  if (!given.contains("engine")) base.engine = "tcp";  // whose bytes are counted
  use_engine(base.engine);
  if (!given.contains("workers")) base.workers = 2;
  std::vector<BatchRun> runs = compress_runs(base, flags);
  const fs::path folder = base.out.empty() ? "runs/sweep-compress" : base.out;
  make_sweep_folder(folder);
  const FolderLock lock(folder);
  check_sweep_folder(folder, base.overwrite, kCompressSweepFiles);

  std::vector<CompressSweepRow> rows;
  for (BatchRun& run : runs) {
    run.options.overwrite = base.overwrite;
    run.options.out = (folder / fmt::format("{}x-{}", run.factor, as_folder(run.options.compress))).string();
    std::fprintf(stderr, "batch %lld  %s\n", static_cast<long long>(run.batch), run.options.compress.c_str());
    CompressSweepRow row{.method = run.options.compress};
    if (const int status = run_of_sweep(run, given, "sweep compress", row.run); status != 0)
      return end_early("sweep compress", folder, rows.size(), runs.size(), status);
    const bool finished = !row.run.params_sha256.empty();
    if (finished) row.wire_bytes_a_step = read_wire_bytes(run.options.out);
    rows.push_back(std::move(row));
    // At once: what was found stays when a later run fails, or somebody stops the sweep.
    replace_file(folder / "sweep.csv", compress_sweep_csv(rows), Sync::yes);
    replace_file(folder / "sweep.svg", compress_sweep_plot(rows), Sync::yes);
  }
  if (flags.train.json)
    for (const CompressSweepRow& row : rows) std::printf("%s\n", to_json(row).dump().c_str());
  else
    std::printf("%s\nnumbers: %s\nplot:    %s\n", compress_sweep_table(rows, wants_colours(1)).c_str(),
                (folder / "sweep.csv").c_str(), (folder / "sweep.svg").c_str());
  return 0;
}

}  // namespace

void add_compress_sweep(Cli& cli, CLI::App& sweep) {
  auto flags = std::make_shared<CompressSweepFlags>();
  CLI::App* command =
      sweep.add_subcommand("compress", "What each method of compression costs in quality and time");
  command->get_formatter()->column_width(34);
  command
      ->add_option("--methods", flags->methods,
                   "each as --compress takes it; none is what others are compared with")
      ->capture_default_str();
  command->add_option("--factors", flags->factors, "of the base batch, --lanes × --lane-batch")
      ->capture_default_str();
  command
      ->add_option("--recipe", flags->recipe, "the rate at larger batches: fixed, linear, warmup, lars, lamb")
      ->capture_default_str();
  add_recipe_flags(*command, flags->sweep);
  add_train_flags(*command, flags->train);
  command->footer(
      "Every run sees the same examples: --steps of the base batch, or --epochs of --examples. Workers (two "
      "unless\n"
      "-n says otherwise) talk over sockets of this machine, whose bytes are counted, unless --engine says "
      "otherwise.\n"
      "Runs are evaluated at their end, and leave no checkpoint. The folder (--out, default "
      "runs/sweep-compress) gets\n"
      "sweep.csv, sweep.svg (quality against bytes and against time) and one run folder each; a run whose "
      "loss is no\n"
      "number any more is a row of the table.\n\n"
      "Examples:\n"
      "  lockstep sweep compress --methods none,bf16 -n 2 --model mlp --data synthetic --lanes 2 "
      "--lane-batch 8 \\\n"
      "    --steps 64 --factors 1,2\n"
      "  lockstep sweep compress --methods none,bf16 --model gpt --lanes 8 --lane-batch 4 --steps 640");
  command->callback([&cli, flags] { cli.action = [flags] { return run_compress_sweep(*flags); }; });
}

}  // namespace lockstep::cli
