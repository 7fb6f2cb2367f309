#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/environment.h"
#include "base/suggest.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/models/precision_names.h"
#include "lockstep/parallel/strategies.h"
#include "report/folder_content.h"
#include "train/device.h"
#include "train/exchange.h"
#include "train/of_use.h"
#include "train/precision.h"
#include "train/read_state.h"
#include "train/run_plan.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void within(const char* option, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw UsageError(fmt::format("{} = {}; accepted: {} to {}", option, value, least, most));
}

void at_least_zero(const char* option, double value) {
  if (!(std::isfinite(value) && value >= 0))
    throw UsageError(fmt::format("{} = {}; accepted: 0 or more, finite", option, value));
}

void check_rate(const TrainerOptions& o) {
  at_least_zero("momentum", o.momentum);
  at_least_zero("weight_decay", o.weight_decay);
  at_least_zero("trust_coefficient", o.trust_coefficient);
  at_least_zero("trust_clip", o.trust_clip);
  at_least_zero("clip_norm", o.clip_norm);
  at_least_zero("clip_value", o.clip_value);
  at_least_zero("warmup_epochs", o.warmup_epochs);
  if (o.optimizer.starts_with("torch-") && !o.exclude.empty() && o.exclude != "none")
    throw UsageError(
        fmt::format("exclude = {} needs an optimizer of ours; accepted: sgd, adam, adamw, lars, "
                    "lamb",
                    o.exclude));
  if (o.clip_norm != 0 && o.clip_value != 0)
    throw UsageError("clip_norm and clip_value both clip gradients; accepted: one of them");
  if (depends_on_length(o.schedule.kind) && o.schedule.final_lr > o.schedule.lr)
    throw UsageError(fmt::format(
        "schedule.final_lr = {} is above schedule.lr = {}, from which the rate falls; accepted: 0 "
        "to that",
        o.schedule.final_lr, o.schedule.lr));
  if (o.warmup_epochs != 0 && o.schedule.warmup_steps != 0)
    throw UsageError(
        "warmup_epochs and schedule.warmup_steps both say how long the rate rises; accepted: one "
        "of them");
}

// What is found here is found before a file changes.
void check_values(const TrainerOptions& o) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  expect_one_of(
      "optimizer:", o.optimizer,
      {"sgd", "adam", "adamw", "lars", "lamb", "onebit-adam", "torch-sgd", "torch-adam", "torch-adamw"});
  expect_one_of("on_nan:", o.on_nan, {"stop", "skip", "go-on"});
  expect_one_of("precision:", o.precision, {std::begin(kPrecisionNames), std::end(kPrecisionNames)});
  expect_one_of("checkpoint_async:", o.checkpoint_async, {"on", "off"});
  expect_one_of("loss_scaling:", o.loss_scaling, {"auto", "on", "off"});
  if (o.optimizer.starts_with("torch-") && (keeps_masters(o) || scales_loss(o)))
    throw UsageError("optimizer: " + o.optimizer +
                     " keeps no master weights and no scale of the loss, which precision = " + o.precision +
                     ", loss_scaling = " + o.loss_scaling + " needs; accepted: sgd, adam, adamw, lars, lamb");
  if (o.offload && (o.optimizer.starts_with("torch-") || o.optimizer == "onebit-adam"))
    throw UsageError(fmt::format(
        "offload: optimizer = {} keeps its state where it computes; accepted: sgd, adam, adamw, lars, lamb",
        o.optimizer));
  if (o.offload.host && o.device == "cpu")
    throw UsageError(
        "offload: host is for parameters on a GPU, and device = cpu; accepted: a folder, or device = cuda");
  if (o.gpu_memory_mb != 0 && (o.device == "cpu" || !(o.gpu_memory_mb > 0)))
    throw UsageError(fmt::format("gpu_memory_mb = {} with device = {}; accepted: 0 (all), or more with cuda",
                                 o.gpu_memory_mb, o.device));
  expect_one_of("measure:", o.measure, {"none", "noise"});
  if (o.optimizer == "onebit-adam" &&
      (scales_loss(o) || o.clip_norm != 0 || o.clip_value != 0 || o.measure == "noise"))
    throw UsageError(
        "optimizer: onebit-adam exchanges momenta, which are no gradients to clip or to measure and outlive "
        "the scale of a loss; accepted: clip_norm and clip_value 0, loss_scaling off, measure none");
  if (o.measure == "noise" && scales_loss(o))
    throw UsageError("measure: noise is that of the loss's own gradients, and loss_scaling = " +
                     o.loss_scaling + " scales them; accepted: loss_scaling off");
  within("lanes", o.lanes, 0, 1 << 20);
  within("lane_batch", o.lane_batch, 1, 1 << 20);
  within("threads", o.threads, 1, 1024);
  within("epochs", o.epochs, 0, kMany);
  within("steps", o.steps, 0, kMany);
  within("loader_threads", o.loader_threads, 1, 1024);
  within("eval_every", o.eval_every, 0, kMany);
  within("eval_batch", o.eval_batch, 1, 1 << 20);
  within("checkpoint_every", o.checkpoint_every, -1, kMany);
  within("keep", o.keep, 0, 1 << 20);
  within("trace_steps", o.trace_steps, 0, 10'000);
  (void)find_device(o.device, 0);
  check(o.schedule);
  check_rate(o);
  if (o.nesterov && (!o.optimizer.ends_with("sgd") || o.momentum == 0))
    throw UsageError("nesterov: accepted with an optimizer of sgd or torch-sgd and a momentum above 0");
  check_of_use(o);
  if (o.out.empty()) throw UsageError("out: names no folder");
}

// What becomes of the buckets. The strategies' own exchanges have the same bits.
std::string exchange_name(const TrainerOptions& o) {
  if (o.parallel.hook) return "hook";
  return o.parallel.exchange ? o.parallel.exchange(leaves_of(o.strategy)).name : "own";
}

Json recipe_of(const TrainerOptions& o, int workers) {
  return {{"model", o.model_name},
          {"data", o.data_name},
          {"lane_batch", o.lane_batch},
          {"last_step", to_string(o.last_step)},
          {"augment", o.augment},
          {"eval_batch", o.eval_batch},
          {"workers", workers},
          {"lanes", o.lanes},
          {"threads", o.threads},
          {"steps", o.steps},
          {"epochs", o.epochs},
          {"seed", o.seed},
          {"optimizer", o.optimizer},
          {"lr", o.schedule.lr},
          {"momentum", o.momentum},
          {"nesterov", o.nesterov},
          {"weight_decay", o.weight_decay},
          {"exclude", o.exclude},
          {"trust_coefficient", o.trust_coefficient},
          {"trust_clip", o.trust_clip},
          {"clip_norm", o.clip_norm},
          {"clip_value", o.clip_value},
          {"schedule", to_string(o.schedule.kind)},
          {"warmup_steps", o.schedule.warmup_steps},
          {"warmup_epochs", o.warmup_epochs},
          {"min_lr", o.schedule.final_lr},
          {"lr_power", o.schedule.power},
          {"lr_every", o.schedule.every},
          {"lr_factor", o.schedule.factor},
          {"precision", o.precision},
          {"reduce_precision", o.parallel.reduce_precision == ReducePrecision::f32 ? "fp32" : "same"},
          {"loss_scaling", o.loss_scaling},
          {"device", o.device},
          {"deterministic", o.deterministic},
          {"tf32", o.tf32},
          {"channels_last", o.channels_last},
          {"cuda_graph", o.cuda_graph},
          {"scaler",
           {o.scaler.init_scale, o.scaler.growth_factor, o.scaler.backoff_factor, o.scaler.growth_interval}},
          {"on_nan", o.on_nan},
          {"measure", o.measure},
          {"strategy", o.strategy},
          {"offload", static_cast<bool>(o.offload)},
          {"offload_params", static_cast<bool>(o.parallel.offload_params)},
          {"order", o.parallel.order == Order::canonical ? "canonical" : "any"},
          {"algorithm", o.parallel.algorithm.empty() ? "auto" : o.parallel.algorithm},
          {"exchange", exchange_name(o)},
          {"out", o.out},
          {"init", o.init},
          {"checkpoint_every", o.checkpoint_every},
          {"checkpoint_async", o.checkpoint_async},
          {"keep", o.keep},
          {"eval_every", o.eval_every}};
}

constexpr const char* kDefines[] = {
    "lane_batch",       "last_step",    "augment",  "lanes",        "threads",       "seed",
    "optimizer",        "lr",           "momentum", "nesterov",     "weight_decay",  "exclude",
    "trust_clip",       "clip_norm",    "schedule", "warmup_steps", "warmup_epochs", "trust_coefficient",
    "clip_value",       "min_lr",       "lr_power", "lr_every",     "lr_factor",     "precision",
    "reduce_precision", "loss_scaling", "scaler",   "device",       "deterministic", "tf32",
    "channels_last"};

void expect_same_run(const Json& now, const Json& then, const TrainerOptions& o) {
  const TrainerOptions fresh;
  const Json defaults = recipe_of(fresh, 0);  // what a run of a version without the option has
  const auto compare = [&](const char* name) {
    const Json before = then.value(name, defaults.at(name));
    if (before != now.at(name))
      throw UsageError(
          fmt::format("{} = {} would make another run than that in {}, which has {}; accepted: the same, or "
                      "another folder (out)",
                      name, now.at(name).dump(), o.out, before.dump()));
  };
  // An older version took, and wrote, what it had no use for.
  const std::vector<OptionUse> uses = uses_of(o);
  const auto is_void = [&](std::string_view name) {
    return std::ranges::any_of(uses, [&](const OptionUse& use) { return use.recipe == name && !use.of_use; });
  };
  for (const char* name : kDefines)
    if (!is_void(name)) compare(name);
  for (const char* name : {"order", "exchange"})
    if (then.contains(name)) compare(name);  // older checkpoints don't say
  if (depends_on_length(o.schedule.kind))
    for (const char* name : {"steps", "epochs"}) compare(name);
}

// Whichever algorithm sums in canonical order carries a run; one with an order of its own is the run's. Gives
// the order of its sums.
std::string expect_same_order(const Json& then, const TrainerOptions& o, const Group& world) {
  const std::string now = order_of_sums(world, o.strategy, o.parallel);
  const Json algorithm = then.value("algorithm", Json()), order = then.value("order", Json());
  if (!algorithm.is_string()) return now;  // older checkpoints don't say
  const std::string before =
      order_of_sums(world, o.strategy,
                    {.algorithm = algorithm == "auto" ? "" : algorithm.get<std::string>(),
                     .order = order == "any" ? Order::any : Order::canonical});
  if (!goes_on_in_order(before, now))
    throw UsageError(fmt::format(
        "parallel.algorithm = {} would make another run than that in {}, whose sums are {}; accepted: {}, or "
        "another folder (out)",
        o.parallel.algorithm.empty() ? "auto" : o.parallel.algorithm, o.out,
        before == "canonical" ? "in canonical order" : "in the order of " + before,
        before == "canonical" ? "one that sums in it" : "the same"));
  return now;
}

void expect_text(const Json& recipe) {
  for (const auto& [name, value] : recipe.items()) {
    try {
      (void)value.dump();
    } catch (const Json::exception&) {
      throw UsageError(name + (name == "model" || name == "data" ? "_name" : "") +
                       ": is not UTF-8; accepted: text in UTF-8");
    }
  }
}

// Where ranks took different examples, or stopped at different steps, nothing would say so. What only rank 0
// uses may differ.
void expect_same_on_all(const Group& world, Json own) {
  for (const char* name : {"model", "data", "lanes", "out", "init", "keep"}) own.erase(name);
  std::string device = own.at("device").get<std::string>();
  own["device"] = device.substr(0, device.find(':'));  // each may name its own GPU
  const std::vector<std::string> all = world.all_gather(own.dump());
  const Json first = Json::parse(all[0]);
  for (int rank = 1; rank < world.size(); ++rank) {
    const Json theirs = Json::parse(all[static_cast<std::size_t>(rank)]);
    for (const auto& [name, value] : theirs.items())
      if (value != first.at(name))
        throw UsageError(fmt::format("{}: {} = {}, and rank 0 has {}; accepted: the same on every rank",
                                     world.named(rank), name, value.dump(), first.at(name).dump()));
  }
}

// By rank 0.
void go_on(RunPlan& plan, const Group& world) {
  TrainerOptions& o = plan.options;
  plan.folder_use = FolderUse::resume;
  if (CheckpointStore(RunFolder::checkpoints_of(o.out)).list().empty()) {  // before its first one, or no run
    if (const fs::path file = find_foreign_file(o.out); !file.empty())
      throw UsageError(fmt::format(
          "out: {} would be replaced, which no run of Lockstep wrote; accepted: another folder, or "
          "move that file away",
          file.string()));
    return;
  }
  plan.resumed = o.out;
  Json state;
  use_checkpoint(o.out, [&](const fs::path& found) {  // the tensors when they are read
    plan.checkpoint = found;
    state = read_state(found);
  });
  const Json& then = state.at("options");
  if (o.lanes == 0 && then.value("lanes", Json()).is_number_integer()) o.lanes = then.at("lanes").get<int>();
  plan.recipe["lanes"] = o.lanes;
  expect_same_run(plan.recipe, then, o);
  const std::string sums = expect_same_order(then, o, world);
  plan.data = read_data_record(state.value("data", Json()), (plan.checkpoint / "state.json").string());
  plan.first_step = state.at("step").get<std::int64_t>();
  if (const Json best = state.value("best_accuracy", Json()); best.is_number())
    plan.best_accuracy = best.get<double>();
  const Json before = then.value("workers", Json());
  plan.remark = remark_on_workers(plan.recipe.at("exchange") == "bf16" ? "bf16_exchange"
                                  : sums == "canonical"                ? ""
                                  : sums == "any"                      ? "parallel.order = any"
                                                                       : "parallel.algorithm = " + sums,
                                  before.is_number_integer() ? before.get<std::int64_t>() : 0,
                                  plan.recipe.at("workers").get<std::int64_t>());
}

void look_at_folder(RunPlan& plan, const Group& world) {
  TrainerOptions& o = plan.options;
  const bool begun = !is_unused(o.out);
  const bool restarted = restarts() > 0 && RunFolder::begun_by_this_job(o.out);
  if (begun && (restarted || o.if_there == IfThere::resume))
    go_on(plan, world);
  else if (begun && o.if_there == IfThere::refuse)
    throw UsageError(fmt::format(
        "out: {} is not empty; accepted: another folder, or if_there = resume or overwrite", o.out));
  else if (begun)
    plan.folder_use = FolderUse::overwrite;
  if (!plan.checkpoint.empty() || o.init.empty()) return;
  plan.init = find_checkpoint(o.init);
  if (plan.folder_use == FolderUse::overwrite && is_checkpoint_of(o.out, plan.init))
    throw UsageError(
        fmt::format("if_there = overwrite would remove {}, with which init begins; accepted: "
                    "another folder (out), or if_there = resume",
                    plan.init.string()));
}

}  // namespace

int restarts() { return std::atoi(read_variable("TORCHELASTIC_RESTART_COUNT").value_or("0").c_str()); }

RunPlan plan_program(TrainerOptions options, const Group& world) {
  RunPlan plan{.options = std::move(options)};
  TrainerOptions& o = plan.options;
  check_values(o);
  if (o.steps == 0 && o.epochs == 0) o.epochs = 1;
  plan.recipe = recipe_of(o, world.size());
  expect_text(plan.recipe);
  expect_same_on_all(world, plan.recipe);
  std::string text;
  run_on_leader(world, "reading the checkpoint", [&] {
    look_at_folder(plan, world);
    text = Json{{"folder_use", static_cast<int>(plan.folder_use)},
                {"resumed", plan.resumed},
                {"checkpoint", plan.checkpoint.string()},
                {"init", plan.init.string()},
                {"data", to_json(plan.data)},
                {"lanes", o.lanes},
                {"first_step", plan.first_step},
                {"best_accuracy", plan.best_accuracy ? Json(*plan.best_accuracy) : Json()}}
               .dump();
  });
  world.broadcast(text, 0);
  const Json found = Json::parse(text);
  plan.folder_use = static_cast<FolderUse>(found.at("folder_use").get<int>());
  plan.resumed = found.at("resumed").get<std::string>();
  plan.checkpoint = found.at("checkpoint").get<std::string>();
  plan.init = found.at("init").get<std::string>();
  plan.data = read_data_record(found.at("data"), "rank 0's plan");
  plan.first_step = found.at("first_step").get<std::int64_t>();
  if (found.at("best_accuracy").is_number()) plan.best_accuracy = found.at("best_accuracy").get<double>();
  o.lanes = found.at("lanes").get<int>();
  if (o.lanes == 0) o.lanes = world.size();
  if (o.lanes < world.size())
    throw UsageError(
        fmt::format("lanes = {} are fewer than {} workers; accepted: {} or more lanes, or fewer workers",
                    o.lanes, world.size(), world.size()));
  if (o.measure == "noise" && o.lanes < 2)
    throw UsageError(
        "measure = noise compares the gradients of lanes, and there is one; accepted: lanes = 2 or more");
  plan.recipe["lanes"] = o.lanes;
  plan.how_to_resume = "run it again with if_there = resume";
  plan.how_to_calm = [](const std::string& checkpoint) {
    return fmt::format("init = \"{}\", another folder and a smaller schedule.lr", checkpoint);
  };
  return plan;
}

}  // namespace lockstep
