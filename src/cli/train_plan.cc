#include "cli/train_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/shell_word.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/data/open_dataset.h"
#include "recipe/rate_options.h"
#include "recipe/task/train_task.h"
#include "report/folder_content.h"
#include "report/folder_lock.h"
#include "train/exchange.h"
#include "train/read_state.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string default_out(const TrainOptions& o) {
  std::string data = fs::path(o.data.empty() ? default_data(o) : o.data).stem().string();
  return fmt::format("runs/{}-{}", o.model, data.empty() ? "data" : data);
}

// A run that its launcher started again goes on from its own newest checkpoint, or, before its first one,
// from the beginning. Its own: a folder that this job has not begun is treated as at the first start, and an
// older run in it is left alone. Nothing is ever overwritten: the first start did that, where it was asked
// to, or did not get so far.
void go_on_after_restart(TrainPlan& plan) {
  TrainOptions& o = plan.options;
  const std::string out = o.out.empty() ? default_out(o) : o.out;
  if (restarts() == 0) return;
  const bool own = RunFolder::begun_by_this_job(out);
  if (!own && o.resume.empty() && o.overwrite && !is_unused(out))
    throw UsageError(
        fmt::format("--overwrite: this job has not begun the run in {}, and a restart removes none; "
                    "accepted: another folder, or a new start",
                    out));
  o.overwrite = false;
  if (!own) return;
  plan.folder_use = FolderUse::resume;
  if (CheckpointStore(RunFolder::checkpoints_of(out)).list().empty()) return;
  o.resume = out;
  o.init.clear();
}

// Whether the run goes on in its own folder, which may be spelled in many ways. Fills in the folder when none
// is given.
bool goes_on_in_its_folder(TrainOptions& o, const fs::path& checkpoint) {
  std::error_code ignored;
  fs::path parent = fs::absolute(checkpoint).lexically_normal().parent_path();
  if (parent.filename() != "checkpoints")
    parent = fs::canonical(checkpoint, ignored).parent_path();  // by a link
  if (parent.filename() != "checkpoints") return false;
  if (o.out.empty()) {
    // As a person would write it: from here where it lies below, else whole.
    const fs::path folder = parent.parent_path();
    const fs::path near = fs::proximate(folder);
    o.out = (*near.begin() == ".." ? folder : near).string();
  }
  return fs::equivalent(o.out, parent.parent_path(), ignored);
}

// Whether a new run would remove the checkpoint that it begins with.
bool would_remove_its_weights(const TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  if (!o.overwrite) return false;
  return is_checkpoint_of(o.out.empty() ? default_out(o) : o.out, plan.init);
}

// The weights of a checkpoint for a new run. One that was not written by `lockstep train` says nothing of its
// model.
void take_weights(TrainPlan& plan, const Given& given) {
  use_checkpoint(plan.options.init, [&](const fs::path& found) {  // its run may go on meanwhile
    plan.init = found;
    if (fs::exists(found / "state.json"))
      take_model(plan.options, given, options_of_state(read_state(found), found));
    else if (!fs::exists(found / "manifest.json"))
      throw SystemError(found.string() + " was removed while it was read");
  });
  if (would_remove_its_weights(plan))
    throw UsageError(
        fmt::format("--overwrite would remove {}, with which --init begins; accepted: another folder "
                    "(--out), or --resume to go on",
                    plan.init.string()));
}

void take_data(TrainPlan& plan, const Given& given, const Json& state, const TrainOptions& before) {
  plan.data = read_data_record(state.value("data", Json()), (plan.checkpoint / "state.json").string());
  const bool told = given.contains("data") || given.contains("data_dir");
  if (plan.data.train_sha256.empty() && plan.options.data != before.data)
    throw UsageError(fmt::format(
        "--data {} would make another run: the checkpoint's is {}; accepted: --resume without --data, or "
        "--init for a new run with its weights",
        plan.options.data, before.data));
  if (told) plan.data.path.clear();
}

StrategyOptions summing(const TrainOptions& o) {
  return {.algorithm = o.algorithm == "auto" ? "" : o.algorithm,
          .order = o.order == "any" ? Order::any : Order::canonical};
}

// Whichever algorithm sums in canonical order carries a run. One with an order of its own is the run's: it
// keeps it, and takes no other.
void continue_algorithm(TrainOptions& o, const Given& given, const TrainOptions& before, const Group& world) {
  const auto sums_of = [&](const TrainOptions& options) {
    return order_of_sums(world, o.strategy, summing(options));
  };
  const std::string then = sums_of(before);
  const bool keeps = !given.contains("algorithm") && !goes_on_in_order(then, sums_of(o));
  if (keeps) o.algorithm = before.algorithm;
  try {
    check_algorithm(world, o.strategy, summing(o), sizeof(float));
  } catch (const UsageError& error) {
    if (!keeps) throw;
    throw UsageError(fmt::format(
        "--resume keeps the checkpoint's --algorithm {}, which sums in an order of its own, and {}; "
        "accepted: the run's engine (--engine), or --init for a new run with its weights",
        o.algorithm, error.what()));
  }
  if (keeps || goes_on_in_order(then, sums_of(o))) return;
  throw UsageError(fmt::format(
      "--algorithm {} would make another run: the checkpoint's sums are {}; accepted: --resume without "
      "--algorithm, or --init for a new run with its weights",
      o.algorithm, then == "canonical" ? "in canonical order" : "in the order of --algorithm " + then));
}

// Gives the options of the run that wrote it.
TrainOptions take_checkpoint(TrainPlan& plan, const Given& given) {
  TrainOptions& o = plan.options;
  plan.checkpoint = find_checkpoint(o.resume);
  // A run that is still being written removes checkpoints while they are read here: its owner is named first.
  std::optional<FolderLock> lock;
  if (TrainOptions probe = o; goes_on_in_its_folder(probe, plan.checkpoint)) lock.emplace(probe.out);
  // Before there was the lock, or in a folder that is not to be this run's, it may have been removed.
  Json state;
  use_checkpoint(o.resume, [&](const fs::path& found) {  // the tensors when they are read
    plan.checkpoint = found;
    state = read_state(found);
  });
  const TrainOptions before = options_of_state(state, plan.checkpoint);
  continue_options(o, given, before);
  o.init = before.init;  // what it began with is a part of its recipe
  take_data(plan, given, state, before);
  plan.workers_before = before.workers;
  plan.first_step = state.at("step").get<std::int64_t>();
  if (const Json best = state.value("best_accuracy", Json()); best.is_number())
    plan.best_accuracy = best.get<double>();
  if (given.contains("steps") && o.steps != 0 && o.steps < plan.first_step)
    throw UsageError(fmt::format("--steps {} is less than the {} that {} has done; accepted: {} or more",
                                 o.steps, plan.first_step, o.resume, plan.first_step));
  // In any other folder it is a new run, beside which no other may lie.
  if (goes_on_in_its_folder(o, plan.checkpoint)) plan.folder_use = FolderUse::resume;
  return before;
}

// Flags that the checkpoint's options, or those beside them, make void. What a file of options has may be so.
void check_flags(const TrainOptions& o, const Given& on_line) {
  if (on_line.contains("data_dir") && std::ranges::find(dataset_names(), o.data) == dataset_names().end())
    throw UsageError(
        fmt::format("--data-dir {} changes nothing with --data {}, which says where the data is; accepted: "
                    "one of them, or "
                    "--data-dir with the name of a dataset ({})",
                    o.data_dir, o.data, fmt::join(dataset_names(), ", ")));
  if (o.resume.empty()) check_of_use(o, on_line);
  if (on_line.contains("resume") &&
      on_line.contains("accumulate"))  // a restart has the flags of the first start
    throw UsageError(fmt::format(
        "--accumulate {} changes nothing with --resume {}, whose lanes are {}; accepted: without it",
        o.accumulate, o.resume, o.lanes));
}

Json to_json(const TrainPlan& plan) {
  return {{"options", to_json(plan.options)},
          {"folder_use", static_cast<int>(plan.folder_use)},
          {"checkpoint", plan.checkpoint.string()},
          {"init", plan.init.string()},
          {"data", to_json(plan.data)},
          {"first_step", plan.first_step},
          {"best_accuracy", plan.best_accuracy ? Json(*plan.best_accuracy) : Json()},
          {"workers_before", plan.workers_before},
          {"sums", plan.sums},
          {"report_to", plan.report_to},
          {"show", static_cast<int>(plan.show)}};
}

TrainPlan from_json(const Json& json) {
  TrainPlan plan;
  merge_json(plan.options, json.at("options"), "rank 0's plan");
  plan.folder_use = static_cast<FolderUse>(json.at("folder_use").get<int>());
  plan.checkpoint = json.at("checkpoint").get<std::string>();
  plan.init = json.at("init").get<std::string>();
  plan.data = read_data_record(json.at("data"), "rank 0's plan");
  plan.first_step = json.at("first_step").get<std::int64_t>();
  if (json.at("best_accuracy").is_number()) plan.best_accuracy = json.at("best_accuracy").get<double>();
  plan.workers_before = json.at("workers_before").get<std::int64_t>();
  plan.sums = json.at("sums").get<std::string>();
  plan.report_to = json.at("report_to").get<std::string>();
  plan.show = static_cast<Show>(json.at("show").get<int>());
  return plan;
}

TrainPlan plan_of(const Json& request, const Group& world) {
  const int workers = world.size();
  TrainPlan plan;
  TrainOptions& o = plan.options;
  merge_json(o, request.at("options"), "the request");
  const Given given = request.at("given").get<Given>();
  plan.report_to = request.value("report_to", "");
  plan.show = request.value("json", false) ? Show::json : Show::text;

  go_on_after_restart(plan);
  std::optional<TrainOptions> before;
  if (!o.resume.empty())
    before = take_checkpoint(plan, given);
  else if (!o.init.empty())
    take_weights(plan, given);
  if (o.resume.empty() && o.overwrite) plan.folder_use = FolderUse::overwrite;
  check_options(o);
  check_flags(o, request.value("on_line", Given()));
  if (before) continue_algorithm(o, given, *before, world);
  plan.sums = order_of_sums(world, o.strategy, summing(o));
  o.workers = workers;
  if (o.lanes == 0) o.lanes = workers * o.accumulate;
  if (!plan.checkpoint.empty()) check_resumed_lanes(o.resume, o.lanes, workers);
  check_lanes(o, workers);
  if (plan.checkpoint.empty() && o.base_lr && falls_to_end(o) &&
      o.min_lr > learning_rate(o))  // that of --lr is known without lanes
    throw UsageError(fmt::format(
        "--min-lr {} is above the {} that --base-lr {} comes to with {} lanes of {}, and from which "
        "the rate falls; accepted: 0 to that",
        o.min_lr, learning_rate(o), *o.base_lr, o.lanes, o.lane_batch));
  if (compresses_by_method(o) && o.compress_groups == 0)
    o.compress_groups = std::min(std::bit_ceil(static_cast<std::uint64_t>(workers)),
                                 std::bit_ceil(static_cast<std::uint64_t>(o.lanes)));
  lanes_of(0, workers, static_cast<int>(o.lanes));
  if (o.out.empty()) o.out = default_out(o);
  std::error_code unknown;
  if (!plan.checkpoint.empty() && plan.folder_use == FolderUse::fresh && fs::is_directory(o.out, unknown) &&
      !is_unused(o.out))
    throw UsageError(
        fmt::format("--out {} is not empty, and --resume {} does not lie in its checkpoints/; accepted: "
                    "--out with another folder, in which that run goes on",
                    o.out, o.resume));
  return plan;
}

}  // namespace

TrainOptions options_of_state(const Json& state, const fs::path& checkpoint) {
  TrainOptions options;
  options.last_step = "short";  // what there was before it could be chosen
  merge_json(options, state.at("options"), (checkpoint / "state.json").string());
  return options;
}

// What rank 0 can't do nobody does, and all say why.
TrainPlan make_train_plan(const Json& request, const Group& world) {
  std::string made;
  run_on_leader(world, "reading the checkpoint", [&] { made = to_json(plan_of(request, world)).dump(); });
  world.broadcast(made, 0);
  TrainPlan plan = from_json(Json::parse(made));
  check_algorithm(world, plan.options.strategy, trainer_options(plan.options).parallel, sizeof(float));
  return plan;
}

std::unique_ptr<RunPlan> run_plan(const TrainPlan& plan, const TrainOptions& located) {
  const TrainOptions& o = plan.options;
  auto run = std::make_unique<RunPlan>();
  run->options = trainer_options(o);
  run->recipe = to_json(o);
  run->folder_use = plan.folder_use;
  run->checkpoint = plan.checkpoint;
  run->resumed = o.resume;
  run->init = plan.init;
  run->data_path = data_path(located);
  run->data = plan.data;
  run->first_step = plan.first_step;
  run->best_accuracy = plan.best_accuracy;
  run->remark = remark_on_workers(o.compress == "bf16"       ? "--compress bf16"
                                  : plan.sums == "canonical" ? ""
                                  : plan.sums == "any"       ? "--order any"
                                                             : "--algorithm " + plan.sums,
                                  plan.workers_before, o.workers);
  run->how_to_resume = fmt::format("lockstep train --resume {} -n {}", shell_word(o.out), o.workers);
  const char* const rate = o.base_lr ? "--base-lr" : "--lr";
  run->how_to_calm = [out = o.out, rate, lr = o.base_lr ? *o.base_lr : *o.lr](const std::string& checkpoint) {
    return fmt::format("lockstep train --config {} --init {} --out {} {} {}",
                       shell_word(out + "/config.json"), shell_word(checkpoint), shell_word(out + "-calmer"),
                       rate, lr / 10);
  };
  return run;
}

}  // namespace lockstep::cli
