// `lockstep sweep`: a short training run for each value of one option, and what that does to throughput and
// communication.
#include "report/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/output_file.h"
#include "base/split.h"
#include "cli/command.h"
#include "cli/sweep_folder.h"
#include "cli/sweep_run.h"
#include "cli/train.h"
#include "cli/train_flags.h"
#include "lockstep/base/error.h"
#include "recipe/engine_flag.h"
#include "report/folder_lock.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct SweepFlags {
  TrainFlags train;
  std::string option;
  std::string values;
  int repeats = 1;
};

// The option's value as JSON of the kind that the option has.
Json parse_value(const std::string& text, const Json& like) {
  if (like.is_string()) return text;
  Json value = try_json<Json>(text);
  return value.is_discarded() ? Json(text) : value;
}

TrainOptions with_value(const TrainOptions& base, const std::string& option, const std::string& text) {
  TrainOptions options = base;
  Json like = to_json(base).value(option, Json(0.0));
  merge_json(options, {{option, parse_value(text, like)}}, "--values");
  TrainOptions checked = options;
  check_options(checked);
  return options;
}

SweepRow run_one(const TrainOptions& options, Given given, const std::string& value, int& status) {
  given.insert("out");
  RunDisplay report(Show::nothing);
  status = start_training(options, given, report, "sweep");
  SweepRow row{.value = value};
  if (status != 0) return row;
  const fs::path summary = fs::path(options.out) / "summary.json";
  const Json s = try_json_file<Json>(summary);
  if (!s.is_object()) throw UsageError(summary.string() + " is no summary of a run");
  row.samples_per_s = s.at("samples_per_s").get<double>();
  row.step_ms = s.at("step_ms_p50").get<double>();
  row.comm_fraction = s.at("comm_fraction").get<double>();
  row.overlap_fraction = s.at("overlap_fraction").get<double>();
  row.final_loss = s.at("final_loss").is_number() ? s.at("final_loss").get<double>() : NAN;
  row.params_sha256 = s.at("params_sha256").get<std::string>();
  return row;
}

// What says where runs lie, not what they are: a sweep decides on it itself.
constexpr std::string_view kOfFolders[] = {"out", "overwrite", "resume", "init"};

constexpr SweepFile kSweepFiles[] = {{"sweep.csv", ",samples_per_s,step_ms_p50,"},
                                     {"sweep.svg", "Throughput against"}};

// A value as a part of a folder's name: it may be a path itself.
std::string in_a_name(std::string value) {
  std::ranges::replace(value, '/', '_');
  return value;
}

// The median of each value that has been run.
std::vector<SweepRow> rows_of(const std::vector<std::vector<SweepRow>>& runs) {
  std::vector<SweepRow> rows;
  for (const auto& of_value : runs)
    if (!of_value.empty()) rows.push_back(median_row(of_value));
  return rows;
}

int give_up(const fs::path& folder, std::size_t done, std::size_t values, int status) {
  if (done > 0)
    std::fprintf(stderr, "lockstep sweep: %zu of %zu values are in %s\n", done, values,
                 (folder / "sweep.csv").c_str());
  return status;
}

int run_sweep(SweepFlags& flags) {
  Given given = gather_sweep(flags.train);
  TrainOptions& base = flags.train.options;
  if (flags.option.empty())
    throw UsageError("an option is needed, for example bucket_cap_mb; or batch, for a table of batches");
  std::ranges::replace(flags.option, '-', '_');
  const std::vector<std::string> names = option_names();
  if (std::ranges::find(names, flags.option) == names.end())
    throw UsageError("option " + not_understood(flags.option, names));
  if (std::ranges::find(kOfFolders, flags.option) != std::end(kOfFolders))
    throw UsageError(
        fmt::format("option '{}' names no setting of a run, only where it lies; accepted: an option such as "
                    "bucket_cap_mb",
                    flags.option));
  std::vector<std::string> values = split_at_commas(flags.values);
  std::erase(values, "");
  if (values.empty()) throw UsageError("--values is needed, for example --values 0.5,1,2,4,8");
  if (flags.repeats < 1) throw UsageError("--repeats: accepted: 1 or more");
  use_engine(base.engine);
  if (base.steps == 0 && base.epochs == 0) base.steps = 30;
  if (!given.contains("eval_every")) base.eval_every = 0;
  const fs::path folder = base.out.empty() ? "runs/sweep-" + flags.option : base.out;
  // One of these may make a flag of use for some of its values.
  const bool decides = flags.option == "model" || flags.option == "optimizer" || flags.option == "schedule";
  Given written = flags.train.on_line;
  written.insert(flags.option);
  for (const std::string& value : values) {  // refused before the first run
    const TrainOptions options = with_value(base, flags.option, value);
    if (!decides && base.init.empty()) check_of_use(options, written);
  }
  make_sweep_folder(folder);
  const FolderLock lock(folder);
  check_sweep_folder(folder, base.overwrite, kSweepFiles);

  // Round by round, so that what changes on the machine meanwhile hits all values alike.
  std::vector<std::vector<SweepRow>> runs(values.size());
  for (int round = 0; round < flags.repeats; ++round)
    for (std::size_t i = 0; i < values.size(); ++i) {
      TrainOptions options = with_value(base, flags.option, values[i]);
      options.out = (folder / fmt::format("{}-{}", flags.option, in_a_name(values[i]))).string();
      options.overwrite = base.overwrite || round > 0;  // later rounds take the place of our own
      std::fprintf(stderr, "%s %s\n", flag_of(flags.option).c_str(), values[i].c_str());
      int status = 0;
      const SweepRow row = run_one(options, given, values[i], status);
      if (status != 0) return give_up(folder, rows_of(runs).size(), values.size(), status);
      runs[i].push_back(row);
      // At once: what was measured stays when a later run fails, or somebody stops the sweep.
      const std::vector<SweepRow> rows = rows_of(runs);
      replace_file(folder / "sweep.csv", sweep_csv(flags.option, rows), Sync::yes);
      replace_file(folder / "sweep.svg", sweep_plot(flags.option, rows), Sync::yes);
    }
  const std::vector<SweepRow> rows = rows_of(runs);
  if (flags.train.json) {
    for (const SweepRow& row : rows) std::printf("%s\n", sweep_json(flags.option, row).dump().c_str());
  } else {
    std::printf("%s\nnumbers: %s\nplot:    %s\n", sweep_table(flags.option, rows, wants_colours(1)).c_str(),
                (folder / "sweep.csv").c_str(), (folder / "sweep.svg").c_str());
  }
  return 0;
}

}  // namespace

void add_sweep(Cli& cli) {
  auto flags = std::make_shared<SweepFlags>();
  CLI::App* command = cli.app.add_subcommand("sweep", "Train briefly with each value of an option, and plot");
  command->group(kTrain);
  command->get_formatter()->column_width(34);
  command->add_option("option", flags->option, "any option of lockstep train, for example bucket_cap_mb");
  command->add_option("--values", flags->values, "its values, for example 0.5,1,2,4,8");
  command->add_option("--repeats", flags->repeats, "runs of each value, the median counts (default: 1)");
  add_train_flags(*command, flags->train);
  command->footer(
      "Each run has 30 steps unless --steps or --epochs says otherwise, no evaluation and no checkpoint. The "
      "folder\n"
      "(--out, default runs/sweep-OPTION) gets sweep.csv, sweep.svg and one run folder a value; --overwrite "
      "takes\n"
      "the place of an earlier sweep.\n\n"
      "Examples:\n"
      "  lockstep sweep bucket_cap_mb --values 0.5,1,2,4,8 -n 2 --model mlp --data synthetic --lane-batch 8\n"
      "  lockstep sweep algorithm --values direct,tree,ring -n 4 --order any --model mlp --data synthetic\n"
      "  lockstep sweep batch --help                a table of batches and recipes for the learning rate\n"
      "  lockstep sweep compress --help             what methods of compression cost in quality and time");
  add_batch_sweep(cli, *command);
  add_compress_sweep(cli, *command);
  command->callback([&cli, command, flags] {
    if (command->get_subcommands().empty()) cli.action = [flags] { return run_sweep(*flags); };
  });
}

}  // namespace lockstep::cli
