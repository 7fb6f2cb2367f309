// `lockstep sweep batch`: how far a batch can grow with each recipe for its learning rate, at equal examples.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "base/split.h"
#include "cli/command.h"
#include "cli/sweep_folder.h"
#include "cli/sweep_run.h"
#include "cli/train_program.h"
#include "launch/run_and_wait.h"
#include "recipe/engine_flag.h"
#include "report/folder_lock.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct BatchSweepFlags {
  TrainFlags train;
  BatchSweep sweep;
  std::string factors = "1,2,4,8,16,32";
  std::string recipes = "fixed,linear,warmup,lars,lamb";
  std::string precisions;
};

constexpr SweepFile kBatchSweepFiles[] = {{"sweep.csv", "factor,batch,recipe,"},
                                          {"sweep.svg", "after as many examples"},
                                          {"index.html", ".figures{display:flex"}};
std::vector<std::string> list_of(const std::string& text) {
  std::vector<std::string> items = split_at_commas(text);
  std::erase(items, "");
  return items;
}

// What a person would type for the same table.
std::string command_of(const BatchSweepFlags& flags) {
  std::string text = "lockstep sweep batch";
  for (const CLI::Option* option : flags.train.command->get_options())
    if (option->count() > 0) {
      text += " " + option->get_name(false, true).substr(option->get_name(false, true).rfind(',') + 1);
      if (option->get_items_expected_max() > 0) text += " " + option->results().back();
    }
  return text;
}

int run_batch_sweep(BatchSweepFlags& flags) {
  const Given given = gather_sweep(flags.train);
  TrainOptions& base = flags.train.options;
  use_engine(base.engine);
  flags.sweep.factors = parse_factors(flags.factors);
  flags.sweep.recipes = list_of(flags.recipes);
  flags.sweep.precisions = list_of(flags.precisions);
  std::vector<BatchRun> runs = batch_runs(base, flags.sweep);  // refused before the first run
  if (flags.sweep.precisions.size() > 1)                       // and what of these libtorch can't compute in
    if (const int status = run_and_wait(
            train_program("sweep batch", {{"device", base.device}, {"precisions", flags.sweep.precisions}})))
      return status;
  const fs::path folder = base.out.empty() ? "runs/sweep-batch" : base.out;
  make_sweep_folder(folder);
  const FolderLock lock(folder);
  check_sweep_folder(folder, base.overwrite, kBatchSweepFiles);

  const std::string title = fmt::format("{} on {}: batches and recipes", base.model,
                                        base.data.empty() ? default_data(base) : base.data);
  std::vector<BatchSweepRow> rows;
  std::map<std::string, BatchSweepRow> done;  // by its options: at 1 × some recipes are the same
  for (BatchRun& run : runs) {
    run.options.out.clear();
    run.options.overwrite = base.overwrite;
    const std::string what = to_json(run.options).dump();
    std::fprintf(stderr, "batch %lld  %s  %s\n", static_cast<long long>(run.batch), run.recipe.c_str(),
                 run.options.precision.c_str());
    if (const auto same = done.find(what); same != done.end()) {
      rows.push_back(same->second);
      rows.back().recipe = run.recipe;
    } else {
      run.options.out =
          (folder / fmt::format("{}x-{}-{}", run.factor, run.recipe, run.options.precision)).string();
      if (const int status = run_of_sweep(run, given, "sweep batch", rows.emplace_back()); status != 0)
        return end_early("sweep batch", folder, rows.size() - 1, runs.size(), status);
      done.emplace(what, rows.back());
    }
    // At once: what was found stays when a later run fails, or somebody stops the sweep.
    replace_file(folder / "sweep.csv", batch_sweep_csv(rows), Sync::yes);
    replace_file(folder / "sweep.svg", batch_sweep_plot(rows), Sync::yes);
    replace_file(folder / "index.html", batch_sweep_page(rows, title, command_of(flags)), Sync::yes);
  }
  if (flags.train.json)
    for (const BatchSweepRow& row : rows) std::printf("%s\n", to_json(row).dump().c_str());
  else
    std::printf("%s\nnumbers: %s\nplot:    %s\npage:    %s\n",
                batch_sweep_table(rows, wants_colours(1)).c_str(), (folder / "sweep.csv").c_str(),
                (folder / "sweep.svg").c_str(), (folder / "index.html").c_str());
  return 0;
}

}  // namespace

void add_batch_sweep(Cli& cli, CLI::App& sweep) {
  auto flags = std::make_shared<BatchSweepFlags>();
  CLI::App* command = sweep.add_subcommand("batch", "How far the batch can grow with each recipe");
  command->get_formatter()->column_width(34);
  command->add_option("--factors", flags->factors, "of the base batch, --lanes × --lane-batch")
      ->capture_default_str();
  command
      ->add_option("--recipes", flags->recipes, "fixed, linear, warmup (linear after a warm-up), lars, lamb")
      ->capture_default_str();
  command->add_option("--precisions", flags->precisions,
                      "each table's --precision (default: --precision alone)");
  add_recipe_flags(*command, flags->sweep);
  add_train_flags(*command, flags->train);
  command->footer(
      "Every run sees the same examples: --steps of the base batch, or --epochs of --examples. A batch\n"
      "grows by its lanes, as it does with more workers. Runs are evaluated at their end, and leave no\n"
      "checkpoint. The folder (--out, default runs/sweep-batch) gets sweep.csv, sweep.svg, index.html and\n"
      "one run folder each; a run whose loss is no number any more is a row of the table. The base "
      "accuracy,\n"
      "against which recipes are held, is that of fixed at the smallest factor.\n\n"
      "Examples:\n"
      "  lockstep sweep batch --model mlp --data synthetic --optimizer sgd --lr 0.05 --lanes 2 \\\n"
      "    --lane-batch 8 --steps 64 --factors 1,2,4 --recipes fixed,linear,warmup --measure noise\n"
      "  lockstep sweep batch --model gpt --lanes 2 --lane-batch 8 --steps 640 --measure noise");
  command->callback([&cli, flags] { cli.action = [flags] { return run_batch_sweep(*flags); }; });
}

}  // namespace lockstep::cli
