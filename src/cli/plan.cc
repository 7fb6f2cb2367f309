// `lockstep plan`: what a run will need, or could use, before it is started. One subcommand a question.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "lockstep/base/error.h"
#include "plan/batch.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

struct PlanBatchFlags {
  std::string run;
  bool json = false;
};

int plan_batch(const PlanBatchFlags& flags) {
  if (flags.run.empty())
    throw UsageError("a run's folder is needed, for example runs/first, trained with --measure noise");
  const BatchAdvice advice = advise_on_batch(read_measured_run(flags.run));
  std::fputs(
      flags.json ? (to_json(advice).dump() + "\n").c_str() : describe(advice, wants_colours(1)).c_str(),
      stdout);
  return 0;
}

void add_plan_batch(Cli& cli, CLI::App& plan) {
  auto flags = std::make_shared<PlanBatchFlags>();
  CLI::App* command =
      plan.add_subcommand("batch", "How large a batch, and how many workers, still help a run");
  command->add_option("run", flags->run, "the folder of a run that was trained with --measure noise");
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->footer(
      "The run has measured its gradient noise scale: the batch at which it would take twice the fewest "
      "steps, "
      "and\n"
      "twice the fewest examples (McCandlish et al. 2018). Steps and examples of the table are those that "
      "lead "
      "as\n"
      "far as the run; efficiency is the part of the work that is not for speed alone. The scale is that of "
      "the\n"
      "run's later half: earlier it is smaller, and a longer run's is larger.\n\n"
      "Examples:\n"
      "  lockstep train --model gpt -n 2 --lanes 8 --lane-batch 8 --measure noise --out runs/gpt\n"
      "  lockstep plan batch runs/gpt\n"
      "  lockstep plan batch runs/gpt --json");
  command->callback([&cli, flags] { cli.action = [flags] { return plan_batch(*flags); }; });
}

}  // namespace

void add_plan(Cli& cli) {
  CLI::App* command = cli.app.add_subcommand("plan", "What a run could use, from what another one measured");
  command->group(kMeasure);
  add_plan_batch(cli, *command);
  command->footer("Examples:\n  lockstep plan batch runs/gpt");
  command->callback([&cli, command] {
    if (command->get_subcommands().empty())
      cli.action = []() -> int { throw UsageError("what is to be planned is not said; accepted: batch"); };
  });
}

}  // namespace lockstep::cli
