// `lockstep infer`: how fast and how well a checkpoint predicts, and what a model of text writes. The work is
// in infer_worker.cc, behind libtorch.
#include "cli/infer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/suggest.h"
#include "cli/command.h"
#include "cli/train_program.h"
#include "lockstep/base/error.h"
#include "lockstep/models/precision_names.h"
#include "recipe/device_flag.h"

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
  if (!o.precision.empty())
    expect_one_of("--precision", o.precision, {std::begin(kPrecisionNames), std::end(kPrecisionNames)});
  check_device(o.device);
  if (o.examples < 0) throw UsageError("--examples: accepted: 0 (all) or more");
  if (o.prompt.empty()) throw UsageError("--prompt '' is not understood; accepted: one character or more");
  if (o.generate < 0 || o.generate > 1'000'000)
    throw UsageError(
        fmt::format("--generate '{}' is out of range; accepted: 0 (none) to 1000000", o.generate));
  if (!(o.temperature >= 0 && o.temperature <= 100))
    throw UsageError(fmt::format("--temperature '{}' is out of range; accepted: 0 to 100", o.temperature));
}

}  // namespace

void add_infer(Cli& cli) {
  auto options = std::make_shared<InferOptions>();
  CLI::App* command =
      cli.app.add_subcommand("infer", "Load a checkpoint: latency, accuracy, and text from a gpt");
  command->group(kTrain);
  command->add_option("--resume", options->resume,
                      "a run's folder (its newest checkpoint), or one checkpoint");
  command->add_option("--data", options->data, "other data than the run's; its test split is used");
  command->add_option("--data-dir", options->data_dir, "where the data's files are");
  command->add_option("--batch", options->batch, "images, or sequences, at once (default: 1)");
  command->add_option("--examples", options->examples, "only so many (default: 500; 0: all)");
  command->add_option("--threads", options->threads, "threads (default: 1)");
  command->add_option("--precision", options->precision,
                      "fp32, bf16, fp16 or bf16-autocast (default: that of the run)");
  command->add_option("--device", options->device, "cpu, cuda, or cuda:N (default: cpu)");
  const char* const text = "Text (gpt)";
  command->add_option("--prompt", options->prompt, "what the text goes on with (default: an empty line)")
      ->group(text);
  command->add_option("--generate", options->generate, "characters to write (default: 200; 0: none)")
      ->group(text);
  command
      ->add_option("--temperature", options->temperature,
                   "of the choice among the next characters (default: 1; 0: always the likeliest)")
      ->group(text);
  command->add_option("--seed", options->seed, "of that choice (default: 0)")->group(text);
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->footer(
      "The latency of an image (of a sequence, for gpt) is its batch's time from the input to the class, "
      "over\n"
      "the batch's size.\n\n"
      "Examples:\n"
      "  lockstep infer --resume runs/first\n"
      "  lockstep infer --resume runs/gpt-text --prompt 'every small dog ' --generate 400 --temperature 0.8\n"
      "  lockstep infer --resume runs/first/checkpoints/step-00000120 --batch 32 --examples 0 --json");
  command->callback([&cli, command, options] {
    for (const char* flag : {"--prompt", "--generate", "--temperature", "--seed"})
      if (command->get_option(flag)->count() > 0) options->text_flag = flag;
    cli.action = [options]() -> int {
      check(*options);
      nlohmann::ordered_json request;
      visit_infer_options(*options, [&](const char* name, const auto& field) { request[name] = field; });
      become_train_program("infer", request);
    };
  });
}

}  // namespace lockstep::cli
