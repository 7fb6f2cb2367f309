// `lockstep infer`: how fast and how well a checkpoint predicts. The work is in infer_worker.cc, behind
// libtorch.
#include "cli/infer.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/train_program.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

void check(const InferOptions& o) {
  const auto at_least_one = [](const char* flag, std::int64_t value) {
    if (value < 1)
      throw UsageError(std::string(flag) + " '" + std::to_string(value) + "': accepted: 1 or more");
  };
  if (o.resume.empty()) throw UsageError("--resume is needed: a run's folder, or one of its checkpoints");
  at_least_one("--batch", o.batch);
  at_least_one("--threads", o.threads);
  if (o.examples < 0) throw UsageError("--examples: accepted: 0 (all) or more");
}

}  // namespace

void add_infer(Cli& cli) {
  auto options = std::make_shared<InferOptions>();
  CLI::App* command = cli.app.add_subcommand("infer", "Load a checkpoint: latency per image, accuracy");
  command->group(kTrain);
  command->add_option("--resume", options->resume,
                      "a run's folder (its newest checkpoint), or one checkpoint");
  command->add_option("--data", options->data, "other data than the run's; its test split is used");
  command->add_option("--data-dir", options->data_dir, "where the data's files are");
  command->add_option("--batch", options->batch, "images at once (default: 1)");
  command->add_option("--examples", options->examples, "only so many (default: 500; 0: all)");
  command->add_option("--threads", options->threads, "threads (default: 1)");
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->footer(
      "The latency of an image is its batch's time from the input to the class, over the batch's size.\n\n"
      "Examples:\n"
      "  lockstep infer --resume runs/first\n"
      "  lockstep infer --resume runs/first/checkpoints/step-00000120 --batch 32 --examples 0 --json");
  command->callback([&cli, options] {
    cli.action = [options]() -> int {
      check(*options);
      become_train_program("infer", to_json(*options));
    };
  });
}

}  // namespace lockstep::cli
