// `lockstep train`: the parent starts the workers and shows what rank 0 reports. Under a launcher it is a
// worker itself, and rank 0 shows.
#include "cli/train.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "cli/command.h"
#include "cli/train_flags.h"
#include "cli/train_program.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "recipe/engine_flag.h"
#include "report/folder_content.h"
#include "report/printer.h"
#include "report/run_folder.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

Json request_of(const TrainOptions& options, const Given& given, const Given& on_line) {
  return {{"options", to_json(options)}, {"given", given}, {"on_line", on_line}};
}

// While it lives a write that nobody reads is an error, not the end of this process: the workers are told to
// stop, and what becomes of them is still said.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
  ~WithoutPipeSignal() { std::signal(SIGPIPE, before_); }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  void (*before_)(int);
};

// What workers met themselves, before what they heard from their peers.
std::vector<WorkerError> told_by_workers(const RunDisplay& report, bool& heard_only) {
  std::vector<WorkerError> own, heard;
  for (const WorkerError& error : report.errors)
    (error.kind == "peer" || error.kind == "timeout" ? heard : own).push_back(error);
  heard_only = own.empty();
  return heard_only ? heard : own;
}

// The failure that explains the others, and how to go on.
int explain(const char* what, const RunDisplay& report, const Starter& starter, int wait_status) {
  bool heard_only = false;
  std::vector<WorkerError> shown = told_by_workers(report, heard_only);
  if (shown.size() > 1) shown.resize(1);
  const std::string hint = report.hint();
  if (!heard_only && !hint.empty() && shown.front().kind != "usage") shown.front().text += "; " + hint;
  const int status = conclude(what, shown, starter, wait_status);
  if (heard_only && !hint.empty()) std::fprintf(stderr, "lockstep %s: %s\n", what, hint.c_str());
  return status;
}

// Told to stop, and it came to no checkpoint: too early, or told twice, or it took too long.
int explain_stop(const char* what, const RunDisplay& report, const Starter& starter, int signal) {
  forget_dumps(starter);
  const char* const name = ::sigabbrev_np(signal);
  const std::string hint = report.hint();
  std::fprintf(stderr, "lockstep %s: stopped by SIG%s%s%s\n", what, name != nullptr ? name : "?",
               report.begun() ? (hint.empty() ? "" : "; ") : " before the first step", hint.c_str());
  if (const std::string words = launchers_words(starter); !words.empty())
    std::fprintf(stderr, "  %s", words.c_str());
  return 128 + signal;
}

// What the parent has to know of a run that is gone on with, before it starts workers.
struct EarlierRun {
  std::int64_t workers = 0;
  std::int64_t lanes = 0;
  std::string device = {};
};

// Nothing where the files can't be read: the workers say why.
EarlierRun look_at_run(const std::filesystem::path& spelled) {
  namespace fs = std::filesystem;
  fs::path near = fs::absolute(spelled).lexically_normal();
  if (!near.has_filename()) near = near.parent_path();  // a slash at its end
  std::vector<std::pair<fs::path, bool>> files = {{spelled / "state.json", true},
                                                  {spelled / "config.json", false}};
  // Of a run's folder of checkpoints: beside it where it is spelled (it may be a link itself), or leads to.
  if (near.filename() == "checkpoints") files.emplace_back(near.parent_path() / "config.json", false);
  std::error_code unknown;
  if (const fs::path far = fs::canonical(spelled, unknown); !unknown && far.filename() == "checkpoints")
    files.emplace_back(far.parent_path() / "config.json", false);
  // Of checkpoints without a run around them: copied out of it, with their folder too, or set aside.
  for (const fs::path& folder : {spelled, RunFolder::checkpoints_of(spelled)}) try {
      if (const fs::path newest = newest_checkpoint_in(folder); !newest.empty())
        files.emplace_back(newest / "state.json", true);
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it can't be listed
    }
  for (const auto& [file, inside] : files) {
    Json json = try_json_file<Json>(file);
    if (inside && json.is_object()) json = Json(json.value("options", Json()));
    if (!json.is_object()) continue;
    const auto number = [&](const char* key) {
      const Json value = json.value(key, Json());
      return value.is_number_integer() ? value.get<std::int64_t>() : 0;
    };
    const Json device = json.value("device", Json());
    if (number("workers") >= 1 && number("workers") <= kMostWorkers)
      return {number("workers"), number("lanes"), device.is_string() ? device.get<std::string>() : ""};
  }
  return {};
}

int run_train(TrainFlags& flags) {
  const Given given = flags.gather();
  use_engine(flags.options.engine);
  TrainOptions checked = flags.options;
  // Else it depends on the checkpoint.
  if (flags.options.resume.empty() && flags.options.init.empty()) {
    check_options(checked);
    check_of_use(checked, flags.on_line);
  }
  // Workers meet over an engine for the device before anybody has read the checkpoint.
  const EarlierRun earlier = flags.options.resume.empty() ? EarlierRun() : look_at_run(flags.options.resume);
  if (!given.contains("device") && !earlier.device.empty()) flags.options.device = earlier.device;
  const Identity identity = Identity::from_environment();
  const bool launched = identity.launcher != "none";
  // Before the workers are started, and all load libtorch.
  if (checked.resume.empty()) check_lanes(checked, launched ? identity.size : checked.workers);
  if (launched) {
    if (flags.options.workers != 0 && flags.options.workers != identity.size)
      throw UsageError(fmt::format("-n (--workers) {} is not what {} started: {}", flags.options.workers,
                                   identity.launcher, identity.size));
    Json request = request_of(flags.options, given, flags.on_line);
    request["json"] = flags.json;
    become_train_program("train", request);
  }
  if (const std::string& resume = flags.options.resume; !resume.empty()) {
    if (flags.options.workers == 0) flags.options.workers = earlier.workers;
    if (earlier.lanes > 0 && !given.contains("lanes"))
      check_resumed_lanes(resume, earlier.lanes, flags.options.workers);
  }
  RunDisplay report(flags.json ? Show::json : Show::text);
  return start_training(flags.options, given, report, "train", flags.on_line);
}

}  // namespace

int start_training(const TrainOptions& options, const Given& given, RunDisplay& report, const char* what,
                   const Given& on_line) {
  use_engine(options.engine);
  EventListener listener;
  Json request = request_of(options, given, on_line);
  request["report_to"] = listener.name();
  const Starter starter =
      start_workers({.program = train_program("train", request),
                     .workers = options.workers == 0 ? 1 : static_cast<int>(options.workers),
                     .pinning = Pinning::cores,
                     .grace = std::chrono::minutes(2)});
  const WithoutPipeSignal quiet;
  bool told = false;
  report.give_up_when([&] { return listener.interrupted_by() != 0 || stop_is_pending(); });
  const int status = listener.serve(
      starter.pid,
      [&](const Json& event) {
        report.handle(event);
        if (report.reader_gone() && listener.interrupted_by() == 0 && !std::exchange(told, true))
          ::kill(starter.pid, SIGTERM);
      },
      [&](int signal) { report.told_to_stop(signal); });
  report.give_up_when([told_at_all = listener.interrupted_by() != 0] { return told_at_all; });
  report.finish();
  const int signal =
      listener.interrupted_by() == 0 && report.reader_gone() ? SIGPIPE : listener.interrupted_by();
  if (report.stopped_by() != 0) {
    forget_dumps(starter);
    // The workers name our SIGTERM where it was the reader's end, whatever came after that.
    return 128 + (told || signal == SIGPIPE ? signal : report.stopped_by());
  }
  if (report.done() && status == 0) return signal == SIGPIPE ? 128 + signal : 0;
  bool heard_only = false;
  told_by_workers(report, heard_only);
  if (signal != 0 && heard_only) return explain_stop(what, report, starter, signal);
  return explain(what, report, starter, status);
}

void add_train(Cli& cli) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command =
      cli.app.add_subcommand("train", "Train a model on N workers, the same bits for every N");
  command->group(kTrain);
  command->get_formatter()->column_width(34);
  add_train_flags(*command, *flags);
  command->footer(
      "A run is defined by its lanes, not by its workers: with the same --lanes, --lane-batch and --seed "
      "any\n"
      "number of workers gives the same weights, bit for bit. The run's folder holds index.html with the "
      "plots,\n"
      "config.json, summary.json, steps.csv, epochs.csv, evaluations.csv, buckets.csv, latency.csv, "
      "trace.json\n"
      "(for ui.perfetto.dev) and checkpoints/.\n"
      "\n"
      "Ctrl-C (SIGINT), SIGTERM, SIGHUP and SIGQUIT end the step, write a checkpoint and say how to resume, "
      "and so\n"
      "does a reader who is gone (| head). Repeats within 3 s are one; a later one stops at once, without a\n"
      "checkpoint. Workers that take longer than 2 minutes are killed.\n"
      "\n"
      "Exit status: 0; 1 the run failed; 2 bad usage; 128 + signal when it was told to stop.\n"
      "\n"
      "Examples:\n"
      "  lockstep train --model resnet18 --data shapes -n 2 --accumulate 2 --epochs 3 --out runs/first\n"
      "  lockstep train --model gpt -n 2 --lanes 8 --lane-batch 8   on text that it makes itself\n"
      "  lockstep train --model gpt --data book.txt -n 2 --lanes 8 --lane-batch 8 --steps 500 --dropout 0.1\n"
      "  lockstep train --resume runs/first -n 4             go on, also with another number of workers\n"
      "  lockstep train --init runs/first --data other --lr 1e-4   a new run from old weights\n"
      "  lockstep train --config recipe.toml --lr 1e-3       a file with any of the flags; flags win\n"
      "  torchrun --no-python --nproc_per_node=2 lockstep train --model mlp --data synthetic --steps 50");
  command->callback([&cli, flags] { cli.action = [flags] { return run_train(*flags); }; });
}

}  // namespace lockstep::cli
