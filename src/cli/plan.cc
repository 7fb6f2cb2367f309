// `lockstep plan`: what a run will need, or could use, before it is started. One subcommand a question.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/train_flags.h"
#include "cli/train_program.h"
#include "lockstep/base/error.h"
#include "plan/batch.h"
#include "plan/memory_request.h"
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

int plan_memory(TrainFlags& flags, MemoryRequest& request) {
  const Given given = flags.gather();
  request.options = flags.options;
  request.json = flags.json;
  settle(request, given);
  if (!is_arithmetic(request)) become_train_program("plan memory", to_json(request));
  std::fputs(answer(request, size_in_params(request), wants_colours(1)).c_str(), stdout);
  return 0;
}

void add_plan_memory(Cli& cli, CLI::App& plan) {
  auto flags = std::make_shared<TrainFlags>();
  auto request = std::make_shared<MemoryRequest>();
  CLI::App* command =
      plan.add_subcommand("memory", "Will it fit? A worker's model state under each strategy");
  command->get_formatter()->column_width(34);
  command->add_option("--params", request->params, "the model's size, in place of --model: 350M, 7.5B");
  command->add_option("--stage", request->stage,
                      "0 (ddp), 1, 2 or 3 (zero1 to zero3), in place of --strategy (default: all four)");
  command->add_option("--machines", request->machines, "with as many of the workers each (default: 1)");
  command->add_option("--memory", request->memory,
                      "of a worker: 24G (default: its part of this machine's, or GPU's)");
  command->add_flag("--gpu", request->gpu, "of workers on GPUs (--device cuda)");
  command->add_flag("--one-gpu", request->one_gpu, "of workers that all share one GPU");
  command->add_option("--unit-params", request->unit_params,
                      "of the largest unit, where zero3 would have to gather (default: a block of --model)");
  add_train_flags(*command, *flags, kMemoryOptions);
  command->get_option("--strategy")
      ->description(
          "the one that is planned, as lockstep train has it: ddp, zero1, zero2, zero3, hybrid-shard "
          "(default: all but the last)")
      ->default_str("");
  command->footer(
      "State is what ZeRO divides: parameters, gradients, and the optimizer's state with master weights.\n"
      "In flight is what is on its way, at most. Sizes are decimal (1 GB is 10^9 bytes).\n\n"
      "Examples:\n"
      "  lockstep plan memory --params 7.5B --workers 64 --precision bf16 --memory 24G\n"
      "  lockstep plan memory --model gpt --blocks 12 --width 768 -n 4 --lanes 8 --json");
  command->callback(
      [&cli, flags, request] { cli.action = [flags, request] { return plan_memory(*flags, *request); }; });
}

}  // namespace

void add_plan(Cli& cli) {
  CLI::App* command =
      cli.app.add_subcommand("plan", "What a run will need, or could use, before it is started");
  command->group(kMeasure);
  add_plan_batch(cli, *command);
  add_plan_memory(cli, *command);
  command->footer("Examples:\n  lockstep plan batch runs/gpt\n  lockstep plan memory --params 7.5B -n 64");
  command->callback([&cli, command] {
    if (command->get_subcommands().empty())
      cli.action = []() -> int {
        throw UsageError("what is to be planned is not said; accepted: batch, memory");
      };
  });
}

}  // namespace lockstep::cli
