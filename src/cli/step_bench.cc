// `lockstep bench step`: a training step with and without synchronisation. The work is in
// step_bench_worker.cc.
#include "cli/step_bench.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/train_flags.h"
#include "cli/train_program.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "recipe/engine_flag.h"
#include "report/progress.h"
#include "report/table.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

const Given kFlags = {"model",
                      "cifar_stem",
                      "layers",
                      "blocks",
                      "width",
                      "heads",
                      "context",
                      "dropout",
                      "lane_batch",
                      "workers",
                      "threads",
                      "steps",
                      "seed",
                      "optimizer",
                      "lr",
                      "momentum",
                      "nesterov",
                      "weight_decay",
                      "bucket_cap_mb",
                      "first_bucket_mb",
                      "algorithm",
                      "order",
                      "engine",
                      "strategy",
                      "compress",
                      "compress_groups",
                      "compress_max_error",
                      "compress_probe_every",
                      "precision",
                      "reduce_precision",
                      "device",
                      "deterministic",
                      "tf32",
                      "channels_last"};

std::string describe(const Json& row) {
  const auto number = [&](const char* key) { return format_number(row.at(key).get<double>()); };
  const auto predicted = [&](const char* key, double scale, const char* unit) {
    const Json& value = row.at(key);
    return value.is_number() ? fmt::format(" (predicted {:.1f}{})", scale * value.get<double>(), unit) : "";
  };
  return fmt::format(
      "{}, {} parameters, {}, {} samples a worker\n"
      "step {} ms{}, alone {} ms: efficiency {:.3f}\n"
      "alone but in phase {} ms\n"
      "communication {:.1f} % of the work{}\n"
      "{} samples/s\n",
      row.at("model").get<std::string>(), number("params"),
      counted(row.at("workers").get<std::int64_t>(), "worker"), row.at("lane_batch").dump(),
      number("step_ms"), predicted("predicted_step_ms", 1, " ms"), number("alone_ms"),
      row.at("efficiency").get<double>(), number("in_phase_ms"), 100 * row.at("comm_fraction").get<double>(),
      predicted("predicted_comm_fraction", 100, " %"), number("samples_per_s"));
}

int run_step_bench(TrainFlags& flags) {
  const Given given = flags.gather();
  TrainOptions& options = flags.options;
  check_options(options);
  check_of_use(options, flags.on_line);
  use_engine(options.engine);
  const Identity identity = Identity::from_environment();
  if (identity.launcher != "none") {  // started as a job: these are the workers
    if (given.contains("workers") && options.workers != 0 && options.workers != identity.size)
      throw UsageError(fmt::format("-n (--workers) {} is not what {} started: {}", options.workers,
                                   identity.launcher, identity.size));
    become_train_program("step", {{"options", to_json(options)}, {"json", flags.json}});
  }
  if (options.workers == 0) options.workers = 1;
  EventListener listener;
  Json request = {{"options", to_json(options)}, {"report_to", listener.name()}};
  const Starter starter = start_workers({.program = train_program("step", request),
                                         .workers = static_cast<int>(options.workers),
                                         .pinning = Pinning::cores});
  std::vector<WorkerError> errors;
  Progress progress;
  const int status = listener.serve(starter.pid, [&](const Json& event) {
    const std::string kind = event.value("event", "");
    if (kind == "progress" && is_terminal(2)) progress.show(event.at("text").get<std::string>());
    if (kind == "error") errors.push_back({event.value("kind", ""), event.value("text", "")});
    if (kind != "row") return;
    progress.clear();
    print_step_row(event.at("row"), flags.json);
  });
  progress.clear();
  if (errors.size() > 1) errors.resize(1);
  return conclude("bench step", errors, starter, status, listener.interrupted_by());
}

}  // namespace

void print_step_row(const Json& row, bool json) {
  std::printf("%s", json ? (row.dump() + "\n").c_str() : describe(row).c_str());
  std::fflush(stdout);
}

void add_step_bench(Cli& cli, CLI::App& bench) {
  auto flags = std::make_shared<TrainFlags>();
  flags->options.workers = 2;
  flags->options.steps = 10;
  flags->options.optimizer = "sgd";
  flags->options.lr = 0.01;
  CLI::App* command = bench.add_subcommand(
      "step", "A training step with and without synchronisation, interleaved in one run");
  command->get_formatter()->column_width(34);
  add_train_flags(*command, *flags, kFlags);
  command->footer(
      "Every worker trains on random data of its own, one lane each. Blocks of steps that average their "
      "gradients\n"
      "take turns with blocks that do not; step_ms and alone_ms are the medians over all steps of all "
      "workers,\n"
      "efficiency is alone_ms / step_ms. in_phase_ms is that of steps without an exchange that all workers "
      "begin\n"
      "together: what the slowest worker and the shared memory cost by themselves. --steps says how many of "
      "each\n"
      "are measured. The prediction is made from steps without an exchange and from the group's cost table. "
      "In a "
      "job that\n"
      "lockstep run or mpirun has started, its workers are measured.\n\n"
      "Examples:\n"
      "  lockstep bench step -n 2 --model resnet18 --lane-batch 32\n"
      "  lockstep bench step -n 2 --model mlp --lane-batch 32 --steps 50 --bucket-cap-mb 4 --json\n"
      "  lockstep run -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint HOST:PORT -- lockstep bench step");
  command->callback([&cli, flags] { cli.action = [flags] { return run_step_bench(*flags); }; });
}

}  // namespace lockstep::cli
