// `lockstep sweep`: a short training run for each value of one option, and what that does to throughput and
// communication.
#include "cli/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/train.h"
#include "cli/train_flags.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/observe/text_file.h"

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

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  }
  std::erase(words, "");
  return words;
}

// The option's value as JSON of the kind that the option has.
Json parse_value(const std::string& text, const Json& like) {
  if (like.is_string()) return text;
  Json value = Json::parse(text, nullptr, false);
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
  TrainReport report(Show::nothing);
  status = start_training(options, given, report, "sweep");
  SweepRow row{.value = value};
  if (status != 0) return row;
  std::ifstream in(fs::path(options.out) / "summary.json");
  const Json s = Json::parse(in);
  row.samples_per_s = s.at("samples_per_s").get<double>();
  row.step_ms = s.at("step_ms_p50").get<double>();
  row.comm_fraction = s.at("comm_fraction").get<double>();
  row.overlap_fraction = s.at("overlap_fraction").get<double>();
  row.final_loss = s.at("final_loss").is_number() ? s.at("final_loss").get<double>() : NAN;
  row.params_sha256 = s.at("params_sha256").get<std::string>();
  return row;
}

int run_sweep(SweepFlags& flags) {
  if (Identity::from_environment().launcher != "none")
    throw UsageError("sweep starts its own workers (-n); it is not for a launcher");
  Given given = flags.train.gather();
  TrainOptions& base = flags.train.options;
  std::ranges::replace(flags.option, '-', '_');
  const std::vector<std::string> names = option_names();
  if (std::ranges::find(names, flags.option) == names.end())
    throw UsageError("option " + not_understood(flags.option, names));
  const std::vector<std::string> values = split(flags.values);
  if (values.empty()) throw UsageError("--values is needed, for example --values 0.5,1,2,4,8");
  if (flags.repeats < 1) throw UsageError("--repeats: accepted: 1 or more");
  if (!base.resume.empty()) throw UsageError("--resume: a sweep starts every run anew");
  if (base.steps == 0 && base.epochs == 0) base.steps = 30;
  if (!given.contains("eval_every")) base.eval_every = 0;
  if (!given.contains("checkpoint_every")) base.checkpoint_every = -1;
  const fs::path folder = base.out.empty() ? "runs/sweep-" + flags.option : base.out;
  for (const std::string& value : values)
    with_value(base, flags.option, value);  // refused before the first run
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw UsageError(fmt::format("--out {}: can't be made: {}", folder.string(), error.message()));

  // Round by round, so that what changes on the machine meanwhile hits all values alike.
  std::vector<std::vector<SweepRow>> runs(values.size());
  for (int round = 0; round < flags.repeats; ++round)
    for (std::size_t i = 0; i < values.size(); ++i) {
      TrainOptions options = with_value(base, flags.option, values[i]);
      options.out = (folder / fmt::format("{}-{}", flags.option, values[i])).string();
      options.overwrite = true;
      std::fprintf(stderr, "%s %s\n", flag_of(flags.option).c_str(), values[i].c_str());
      int status = 0;
      runs[i].push_back(run_one(options, given, values[i], status));
      if (status != 0) return status;
    }
  std::vector<SweepRow> rows;
  for (auto& of_value : runs) rows.push_back(median_row(std::move(of_value)));

  replace_file(folder / "sweep.csv", sweep_csv(flags.option, rows));
  replace_file(folder / "sweep.svg", sweep_plot(flags.option, rows));
  if (flags.train.json) {
    for (const SweepRow& row : rows) std::printf("%s\n", sweep_json(flags.option, row).dump().c_str());
  } else {
    std::printf("%s\nnumbers: %s\nplot:    %s\n", sweep_table(flags.option, rows).c_str(),
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
  command->add_option("option", flags->option, "any option of lockstep train, for example bucket_cap_mb")
      ->required();
  command->add_option("--values", flags->values, "its values, for example 0.5,1,2,4,8");
  command->add_option("--repeats", flags->repeats, "runs of each value, the median counts (default: 1)");
  add_train_flags(*command, flags->train);
  command->footer(
      "Each run has 30 steps unless --steps or --epochs says otherwise, no evaluation and no checkpoint. The "
      "folder\n"
      "(--out, default runs/sweep-OPTION) gets sweep.csv, sweep.svg and one run folder a value.\n\n"
      "Examples:\n"
      "  lockstep sweep bucket_cap_mb --values 0.5,1,2,4,8 -n 2 --model mlp --data synthetic --lane-batch 8\n"
      "  lockstep sweep algorithm --values direct,tree,ring -n 4 --order any --model mlp --data synthetic");
  command->callback([&cli, flags] { cli.action = [flags] { return run_sweep(*flags); }; });
}

}  // namespace lockstep::cli
