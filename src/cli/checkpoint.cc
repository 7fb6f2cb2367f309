// `lockstep checkpoint`: what lies in checkpoints, whether they are whole, and their weights as one file.
#include <cstdio>

#include "checkpoint/inspect/report.h"
#include "cli/command.h"
#include "lockstep/base/error.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

struct CheckpointFlags {
  std::string folder, out;
  bool json = false;
  ExportedWeights weights = ExportedWeights::model;
  Existing existing = Existing::refuse;
};

int print_report(const CheckpointFlags& flags, const std::string& command) {
  if (flags.folder.empty())
    throw UsageError("a folder is needed: a run's, its checkpoints', or one checkpoint's");
  const ReportForm form = flags.json         ? ReportForm::json
                          : wants_colours(1) ? ReportForm::coloured
                                             : ReportForm::plain;
  const auto print = [](const std::string& lines) {
    std::fputs(lines.c_str(), stdout);
    std::fflush(stdout);  // the next checkpoint may take long
  };
  if (command == "inspect") report_content(flags.folder, form, print);
  if (command == "verify") report_condition(flags.folder, form, print);
  if (command == "export")
    report_export(flags.folder, {flags.out, flags.weights, flags.existing}, form, print);
  return 0;
}

CLI::App& add_report(Cli& cli, CLI::App& parent, const std::shared_ptr<CheckpointFlags>& flags,
                     const std::string& name, const std::string& about, const std::string& more = {}) {
  CLI::App& command = *parent.add_subcommand(name, about);
  command.add_option("folder", flags->folder, "a run's folder, its checkpoints, or one checkpoint");
  command.add_flag("--json", flags->json, "one JSON object a line on standard output");
  command.footer("Examples:\n  lockstep checkpoint " + name + " runs/first" + more);
  command.callback(
      [&cli, flags, name] { cli.action = [flags, name] { return print_report(*flags, name); }; });
  return command;
}

}  // namespace

void add_checkpoint(Cli& cli) {
  auto flags = std::make_shared<CheckpointFlags>();
  CLI::App& command = *cli.app.add_subcommand("checkpoint", "Look into checkpoints, verify, export them");
  command.group(kTrain);
  command.footer("Examples:\n  lockstep checkpoint verify runs/first");
  add_report(cli, command, flags, "inspect", "Which checkpoints there are, and what the newest holds");
  add_report(cli, command, flags, "verify", "Check every file of every checkpoint against its manifest");
  CLI::App& weights =
      add_report(cli, command, flags, "export", "Write the newest checkpoint's weights as one file",
                 " --out weights.safetensors");
  weights.add_option("--out", flags->out, "the safetensors file to write");
  weights.add_flag_callback(
      "--master", [flags] { flags->weights = ExportedWeights::master; },
      "f32 master weights in place of 16-bit parameters that have one");
  weights.add_flag_callback(
      "--overwrite", [flags] { flags->existing = Existing::replace; }, "replace the file if it is there");
  command.callback([&cli, &command] {
    if (command.get_subcommands().empty())
      cli.action = []() -> int {
        throw UsageError("what is to be done is not said; accepted: inspect, verify, export");
      };
  });
}

}  // namespace lockstep::cli
