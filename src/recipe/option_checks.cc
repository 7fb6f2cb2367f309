// What the options of a run may be, each by itself and together.
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "base/suggest.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/models/precision_names.h"
#include "lockstep/parallel/strategy_names.h"
#include "recipe/device_flag.h"
#include "recipe/engine_flag.h"
#include "recipe/exchange_checks.h"
#include "recipe/rate_options.h"
#include "recipe/train_options.h"
#include "recipe/within.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 40;

void check_ranges(const TrainOptions& o) {
  using I = std::int64_t;
  within<I>("--channels", o.channels, 1, 1024);
  within<I>("--layers", o.layers, 0, 1000);
  within<I>("--blocks", o.blocks, 1, 1000);
  within<I>("--width", o.width, 0, 1 << 20);
  within<I>("--heads", o.heads, 1, 1024);
  within<I>("--context", o.context, 1, 1 << 20);
  within("--dropout", o.dropout, 0.0, 0.99);
  within<I>("--examples", o.examples, 0, kMany);
  within<I>("--lane-batch", o.lane_batch, 1, 1 << 20);
  within<I>("--loader-threads", o.loader_threads, 1, 1024);
  within<I>("--eval-batch", o.eval_batch, 1, 1 << 20);
  within<I>("--eval-examples", o.eval_examples, 0, kMany);
  within<I>("-n (--workers)", o.workers, 0, kMostWorkers);
  within<I>("--lanes", o.lanes, 0, 1 << 20);
  within<I>("--accumulate", o.accumulate, 1, 1 << 16);
  within<I>("--threads", o.threads, 1, 1024);
  // 0 beside the other is how a file says which of the two counts.
  if (o.steps != 0) within<I>("--steps", o.steps, 1, kMany);
  if (o.epochs != 0) within<I>("--epochs", o.epochs, 1, kMany);
  within("--label-smoothing", o.label_smoothing, 0.0, 0.99);
  if (o.lr) within("--lr", *o.lr, 0.0, 1e6);
  if (o.base_lr) within("--base-lr", *o.base_lr, 0.0, 1e6);
  within<I>("--base-batch", o.base_batch, 0, kMany);
  within("--momentum", o.momentum, 0.0, 1.0);
  if (o.weight_decay) within("--weight-decay", *o.weight_decay, 0.0, 1e6);
  within("--trust-coefficient", o.trust_coefficient, 0.0, 1e6);
  if (o.trust_clip != 0) within("--trust-clip", o.trust_clip, 1e-12, 1e12, ", or 0 (none)");
  if (o.clip_norm != 0) within("--clip-norm", o.clip_norm, 1e-12, 1e12, ", or 0 (none)");
  if (o.clip_value != 0) within("--clip-value", o.clip_value, 1e-12, 1e12, ", or 0 (none)");
  within<I>("--warmup-steps", o.warmup_steps, 0, kMany);
  within("--warmup-epochs", o.warmup_epochs, 0.0, 1e9);
  within("--min-lr", o.min_lr, 0.0, 1e6);
  within("--lr-power", o.lr_power, 0.0, 1e3);
  within<I>("--lr-every", o.lr_every, 0, kMany);
  within("--lr-factor", o.lr_factor, 0.0, 1e6);
  within("--loss-scale", o.loss_scale, 1e-6, 1e30);
  within<I>("--loss-scale-every", o.loss_scale_every, 1, kMany);
  if (o.bucket_cap_mb != 0) within("--bucket-cap-mb", o.bucket_cap_mb, 1e-6, 1e6, ", or 0 (auto)");
  within("--first-bucket-mb", o.first_bucket_mb, 1e-6, 1e6);
  within<I>("--checkpoint-every", o.checkpoint_every, -1, kMany);
  within<I>("--keep", o.keep, 0, 1 << 20);
  within<I>("--eval-every", o.eval_every, 0, kMany);
  within<I>("--trace-steps", o.trace_steps, 0, 10000);
  if (o.gpu_memory_mb != 0) within("--gpu-memory-mb", o.gpu_memory_mb, 1.0, 1e9, ", or 0 (auto)");
}

// What a record of forward and backward can't have. How many lanes a worker gets is for the workers to see.
void check_cuda_graph(const TrainOptions& o) {
  if (!o.cuda_graph) return;
  const auto refuse = [](const std::string& what, const char* why, const char* accepted) {
    throw UsageError(fmt::format("--cuda-graph with {}: {}; accepted: {}", what, why, accepted));
  };
  if (o.model == "gpt" && o.dropout > 0)
    refuse(fmt::format("--dropout {}", o.dropout), "the same numbers would be drawn in every step",
           "--dropout 0");
  if (o.norm == "sync") refuse("--norm sync", "the workers meet inside forward", "--norm batch or group");
  if (o.strategy == "zero3" || o.strategy == "hybrid-shard")
    refuse("--strategy " + o.strategy, "parameters are gathered inside forward and backward",
           "ddp, zero1, zero2");
  if (o.recompute) refuse("--recompute", "forward runs inside backward", "without it");
  if (o.precision == "bf16-autocast")
    refuse("--precision bf16-autocast", "its copies of the weights would be recorded", "fp32, bf16 or fp16");
}

void check_arithmetic(const TrainOptions& o) {
  if (o.device != "cpu") {
    if (compresses_by_method(o))
      throw UsageError(
          fmt::format("--compress {} is computed on the processor; accepted with --device {}: none, bf16",
                      o.compress, o.device));
    check_cuda_graph(o);
    return;
  }
  for (const auto& [flag, on] : {std::pair("--deterministic", o.deterministic),
                                 {"--tf32", o.tf32},
                                 {"--cuda-graph", o.cuda_graph},
                                 {"--gpu-memory-mb", o.gpu_memory_mb != 0}})
    if (on)
      throw UsageError(
          fmt::format("{} changes nothing with --device cpu; accepted: with --device cuda", flag));
}

void check_precision(const TrainOptions& o) {
  const bool narrow = o.precision == "bf16" || o.precision == "fp16";
  const bool scales = scales_loss(o);
  if (o.optimizer.starts_with("torch-") && (narrow || scales))
    throw UsageError(
        fmt::format("--optimizer {} keeps no master weights and no scale of the loss, which {} {} "
                    "needs; accepted: {}, Lockstep's own",
                    o.optimizer, narrow ? "--precision" : "--loss-scaling",
                    narrow ? o.precision : o.loss_scaling, o.optimizer.substr(6)));
  if (o.measure == "noise" && scales)
    throw UsageError(fmt::format(
        "--measure noise is that of the loss's own gradients, and --loss-scaling {} scales them; accepted: "
        "--loss-scaling off",
        o.loss_scaling));
  if (narrow && o.compress == "bf16")
    throw UsageError(
        fmt::format("--compress {} changes nothing with --precision {}, whose gradients are of 16 "
                    "bits; accepted: with --precision fp32 or bf16-autocast",
                    o.compress, o.precision));
}

}  // namespace

void check_values(const TrainOptions& o) {
  expect_one_of("--model", o.model, {"resnet18", "resnet34", "resnet50", "gpt", "mlp"});
  expect_one_of("--norm", o.norm, {"batch", "sync", "group"});
  expect_one_of(
      "--optimizer", o.optimizer,
      {"sgd", "adam", "adamw", "lars", "lamb", kOneBitAdam, "torch-sgd", "torch-adam", "torch-adamw"});
  expect_one_of("--schedule", o.schedule, {"constant", "cosine", "linear", "poly", "step"});
  expect_one_of("--lr-scaling", o.lr_scaling, {"linear", "sqrt"});
  expect_one_of("--checkpoint-async", o.checkpoint_async, {"on", "off"});
  expect_one_of("--on-nan", o.on_nan, {"stop", "skip", "go-on"});
  expect_one_of("--last-step", o.last_step, {"short", "drop", "wrap"});
  expect_one_of("--measure", o.measure, {"none", "noise"});
  expect_one_of("--order", o.order, {"canonical", "any"});
  if (!o.engine.empty()) check_engine("--engine", o.engine);
  expect_one_of("--offload-what", o.offload_what, {"state", "params", "state,params"});
  if (o.gathered_mb != 0) {
    within("--gathered-mb", o.gathered_mb, 1e-6, 1e6, ", or 0 (auto)");
    if (o.strategy != "zero3" && o.strategy != "hybrid-shard")
      throw UsageError("--gathered-mb is of parameters in shards, and --strategy is " + o.strategy +
                       "; accepted: zero3, hybrid-shard");
  }
  expect_one_of("--strategy", o.strategy, {std::begin(kStrategyNames), std::end(kStrategyNames)});
  check_compress(o);
  check_onebit_adam(o);
  expect_one_of("--precision", o.precision, {std::begin(kPrecisionNames), std::end(kPrecisionNames)});
  expect_one_of("--reduce-precision", o.reduce_precision, {"same", "fp32"});
  expect_one_of("--loss-scaling", o.loss_scaling, {"auto", "on", "off"});
  check_device(o.device);
  check_ranges(o);
}

void check_options(TrainOptions& o) {
  check_values(o);
  const bool sgd = o.optimizer.ends_with("sgd");
  if (o.data.empty()) o.data = default_data(o);
  if (o.optimizer == kOneBitAdam && o.compress == "none") o.compress = kOneBitAdam;
  if (o.width == 0) o.width = o.model == "gpt" ? 256 : 1024;
  if (o.steps == 0 && o.epochs == 0) o.epochs = 1;
  settle_rate(o);
  if (o.model == "gpt" && o.width % o.heads != 0)
    throw UsageError(fmt::format("--heads {} does not divide --width {}", o.heads, o.width));
  if (o.schedule == "step" && o.lr_every == 0)
    throw UsageError("--schedule step needs --lr-every, a number of steps above 0");
  if (o.nesterov && (!sgd || o.momentum == 0))
    throw UsageError("--nesterov needs --optimizer sgd or torch-sgd and a --momentum above 0");
  if (o.norm == "sync" && o.last_step == "short")
    throw UsageError(
        "--last-step short leaves lanes out of an epoch's last step, and --norm sync is over all of them; "
        "accepted: wrap or drop");
  check_precision(o);
  check_arithmetic(o);
  settle_offload(o);
  const bool algorithm = o.algorithm != "auto";
  const bool onebit = o.optimizer == kOneBitAdam;
  const char* const flag = onebit ? "--optimizer" : "--compress";
  if (o.compress != "none" && (algorithm || o.order != "canonical"))
    throw UsageError(fmt::format("{} {} changes nothing with {} {}; accepted: with {} {}",
                                 algorithm ? "--algorithm" : "--order", algorithm ? o.algorithm : o.order,
                                 flag, onebit ? o.optimizer : o.compress, flag,
                                 onebit ? kOwnOptimizers : "none"));
}

void check_of_use(const TrainOptions& o, const Given& given) {
  const bool gpt = o.model == "gpt", mlp = o.model == "mlp", resnet = o.model.starts_with("resnet");
  const bool sgd = o.optimizer.ends_with("sgd"), step = o.schedule == "step";
  constexpr const char* kScaling = "on, or auto and --precision fp16";
  const bool onebit = o.optimizer == kOneBitAdam;
  const bool lars = o.optimizer == "lars", own = !o.optimizer.starts_with("torch-");
  const struct {
    const char* name;
    bool of_use;
    const char* flag;
    const std::string& value;
    const char* accepted;
  } cases[] = {
      {"cifar_stem", resnet, "--model", o.model, "resnet18, resnet34 or resnet50"},
      {"norm", resnet, "--model", o.model, "resnet18, resnet34 or resnet50"},
      {"channels", resnet, "--model", o.model, "resnet18, resnet34 or resnet50"},
      {"layers", mlp, "--model", o.model, "mlp"},
      {"blocks", gpt, "--model", o.model, "gpt"},
      {"width", gpt || mlp, "--model", o.model, "gpt or mlp"},
      {"heads", gpt, "--model", o.model, "gpt"},
      {"context", gpt, "--model", o.model, "gpt"},
      {"dropout", gpt, "--model", o.model, "gpt"},
      {"tied_embeddings", gpt, "--model", o.model, "gpt"},
      {"momentum", sgd || lars, "--optimizer", o.optimizer, "sgd, torch-sgd or lars"},
      {"exclude", own, "--optimizer", o.optimizer, "sgd, adam, adamw, lars, lamb or onebit-adam"},
      {"trust_coefficient", lars, "--optimizer", o.optimizer, "lars"},
      {"trust_clip", is_layerwise(o), "--optimizer", o.optimizer, "lars or lamb"},
      {"min_lr", falls_to_end(o), "--schedule", o.schedule, "cosine, linear or poly"},
      {"lr_power", o.schedule == "poly", "--schedule", o.schedule, "poly"},
      {"lr_every", step, "--schedule", o.schedule, "step"},
      {"lr_factor", step, "--schedule", o.schedule, "step"},
      {"compress_groups", compresses_by_method(o), "--compress", o.compress, "a method such as topk:0.01"},
      {"compress_max_error", o.compress == "auto", "--compress", o.compress, "auto"},
      {"compress_probe_every", o.compress == "auto", "--compress", o.compress, "auto"},
      {"offload_what", offloads(o) || o.offload_what == "state", "--offload", o.offload, "FOLDER"},
      {"algorithm", o.compress == "none" && !onebit, onebit ? "--optimizer" : "--compress",
       onebit ? o.optimizer : o.compress, onebit ? kOwnOptimizers : "none"},
      {"reduce_precision", o.precision == "bf16" || o.precision == "fp16", "--precision", o.precision,
       "bf16 or fp16"},
      {"loss_scale", scales_loss(o), "--loss-scaling", o.loss_scaling, kScaling},
      {"loss_scale_every", scales_loss(o), "--loss-scaling", o.loss_scaling, kScaling},
      {"order", o.compress == "none" && !onebit, onebit ? "--optimizer" : "--compress",
       onebit ? o.optimizer : o.compress, onebit ? kOwnOptimizers : "none"}};
  for (const auto& c : cases)
    if (!c.of_use && given.contains(c.name))
      throw UsageError(fmt::format("{} changes nothing with {} {}; accepted: with {} {}", flag_of(c.name),
                                   c.flag, c.value, c.flag, c.accepted));
  if (given.contains("accumulate") && o.lanes != 0)
    throw UsageError(fmt::format(
        "--accumulate {} changes nothing with --lanes {}, which says how many there are; accepted: "
        "one of them",
        o.accumulate, o.lanes));
  if (given.contains("lr_scaling") && !o.base_lr)
    throw UsageError("--lr-scaling changes nothing without --base-lr; accepted: with --base-lr");
}

std::string default_data(const TrainOptions& o) { return o.model == "gpt" ? "text" : "shapes"; }

void check_lanes(const TrainOptions& o, std::int64_t workers) {
  if (o.lanes != 0 && o.lanes < workers)
    throw UsageError(
        fmt::format("--lanes {} is less than the {} workers; accepted: --lanes {} or more, or -n {} at most",
                    o.lanes, workers, workers, o.lanes));
  // Workers that nobody has counted are counted where the run begins.
  const std::int64_t lanes = o.lanes != 0 ? o.lanes : workers * o.accumulate;
  if (o.norm == "sync" && workers != 0 && lanes != workers)
    throw UsageError(fmt::format(
        "--norm sync is over one lane of each worker at once, so {} lanes on {} worker{} would be "
        "another run than on {}; accepted: -n {}, or --norm batch or group for any number",
        lanes, workers, workers == 1 ? "" : "s", lanes, lanes));
  if (o.measure == "noise" && (lanes != 0 ? lanes : o.accumulate) < 2)
    throw UsageError(
        "--measure noise compares the gradients of lanes, and there is one; accepted: --lanes 2 or more");
}

void check_resumed_lanes(const std::string& run, std::int64_t lanes, std::int64_t workers) {
  if (workers > lanes)
    throw UsageError(
        fmt::format("-n {} is more than the {} lanes of {}, which define that run; accepted: -n {} at most "
                    "(a new run with "
                    "more lanes, from its weights: --init)",
                    workers, lanes, run, lanes));
}

std::string beyond_range(const std::string& name, const std::string& text) {
  TrainOptions edge;
  std::string message;
  visit_options(edge, [&](const OptionInfo& info, auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool>) {
      if (name != info.name) return;
      using Limits = std::numeric_limits<Field>;
      const char* const last = text.data() + text.size();
      // For an unsigned number "-1" is no number at all; CLI11 takes it for the largest.
      const bool negative = std::is_unsigned_v<Field> && text.size() > 1 && text.front() == '-' &&
                            text.find_first_not_of("0123456789", 1) == std::string::npos;
      const auto [end, error] = std::from_chars(text.data(), last, field);
      if (!negative && (error != std::errc::result_out_of_range || end != last)) return;
      field = text.front() == '-' ? Limits::min() : Limits::max();
      message = fmt::format("accepted: {} to {}", Limits::min(), Limits::max());
    }
  });
  if (message.empty()) return message;
  try {
    check_values(edge);
  } catch (const UsageError& error) {  // the option has a range of its own
    message = error.what();
    message.erase(0, message.find("accepted: "));
  }
  return fmt::format("'{}' is out of range; {}", text, message);
}

}  // namespace lockstep
