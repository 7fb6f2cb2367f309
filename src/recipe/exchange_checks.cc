#include "recipe/exchange_checks.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/suggest.h"
#include "compress/method_names.h"
#include "compress/method_text.h"
#include "lockstep/base/error.h"
#include "recipe/within.h"

namespace lockstep {
namespace {

bool has_onebit_adam(const std::string& compress) {
  if (compress == "none" || compress == "bf16" || compress == "auto") return false;
  for (const compress::Rule& rule : compress::parse_rules(compress))
    if (rule.method.name == kOneBitAdam) return true;
  return false;
}

}  // namespace

// Names and the form of it; what a method takes it says itself, where it is made.
void check_compress(const TrainOptions& o) {
  within<std::int64_t>("--compress-groups", o.compress_groups, 0, 1 << 20);
  within("--compress-max-error", o.compress_max_error, 1e-6, 10.0);
  if (o.compress_probe_every != 0)
    within<std::int64_t>("--compress-probe-every", o.compress_probe_every, 10, std::int64_t{1} << 40,
                         ", or 0 (never)");
  // It waits inside of backward, if only for what all have begun: nobody has tried that where parameters are
  // gathered there.
  if (o.compress == "auto" && (o.strategy == "zero3" || o.strategy == "hybrid-shard"))
    throw UsageError(fmt::format(
        "--compress auto with --strategy {}; accepted: a method by name, or --strategy ddp, zero1, zero2",
        o.strategy));
  if (!compresses_by_method(o) || o.compress == "auto") return;
  for (const compress::Rule& rule : compress::parse_rules(o.compress)) {
    std::vector<std::string> names(std::begin(compress::kMethodNames), std::end(compress::kMethodNames));
    const bool for_all = o.compress == rule.method.text;  // without rules
    if (rule.method.name == "bf16" || rule.method.name == "auto")
      throw UsageError(fmt::format(
          "--compress {}: {} takes {}; accepted: {} alone, or METHOD[:OPTIONS] such as topk:0.01:warmup=100",
          o.compress, rule.method.name, for_all ? "no options" : "all parameters, and no rules beside it",
          rule.method.name));
    if (for_all) names.insert(names.begin() + 1, {"bf16", "auto"});
    expect_one_of("--compress", rule.method.name, names);
    const bool has_momentum = o.optimizer.ends_with("sgd") || o.optimizer == "lars";
    if (rule.method.name == "dgc" && has_momentum && o.momentum != 0)
      throw UsageError(
          fmt::format("--compress {} takes the momentum itself, and --momentum {} would be taken twice; "
                      "accepted: --momentum 0",
                      o.compress, o.momentum));
  }
}

bool scales_loss(const TrainOptions& o) {
  return o.loss_scaling == "on" || (o.loss_scaling == "auto" && o.precision == "fp16");
}

// The optimizer and the exchange are one algorithm, of momenta: nothing else may take them for gradients.
void check_onebit_adam(const TrainOptions& o) {
  const bool optimizer = o.optimizer == kOneBitAdam, exchange = has_onebit_adam(o.compress);
  if (exchange && !optimizer)
    throw UsageError(
        fmt::format("--compress {} sends the momenta of --optimizer onebit-adam, and --optimizer is {}; "
                    "accepted: --optimizer onebit-adam",
                    o.compress, o.optimizer));
  if (!optimizer) return;
  if (!exchange && o.compress != "none")
    throw UsageError(fmt::format(
        "--optimizer onebit-adam sends its momenta by --compress onebit-adam, and --compress is {}; "
        "accepted: onebit-adam[:warmup=N:beta1=B:min=N], with rules for none, or nothing",
        o.compress));
  const auto refuse = [](const std::string& flag, const std::string& why, const char* accepted) {
    throw UsageError(fmt::format("{} with --optimizer onebit-adam: {}; accepted: {}", flag, why, accepted));
  };
  if (o.clip_norm != 0 || o.clip_value != 0)
    refuse(o.clip_norm != 0 ? fmt::format("--clip-norm {}", o.clip_norm)
                            : fmt::format("--clip-value {}", o.clip_value),
           "what comes out of the exchange is no gradient but the momentum", "none");
  if (scales_loss(o))
    refuse(o.loss_scaling == "on" ? "--loss-scaling on" : "--precision fp16, which scales the loss,",
           "a momentum outlives the scale of its loss", "--loss-scaling off");
  if (o.measure == "noise")
    refuse("--measure noise", "the norm of the momentum says nothing of the gradients'", "--measure none");
}

// The folder is the workers' to look at: it may be on their machines alone. A run that goes on from elsewhere
// has to find it.
void settle_offload(TrainOptions& o) {
  if (!offloads(o)) return;
  if (o.offload.empty())
    throw UsageError("--offload ''; accepted: a folder on a local disk, host (with --device cuda), or none");
  if (offloads_params(o) && (o.device != "cpu" || o.offload == kHostOffload))
    throw UsageError(fmt::format(
        "--offload-what {} is of parameters in the processor's memory; accepted with --device {}: state",
        o.offload_what, o.device));
  if (offloads_params(o) && o.strategy != "zero3" && o.strategy != "hybrid-shard")
    throw UsageError(
        fmt::format("--offload-what {} is of parameters in shards, and --strategy is {}; accepted: zero3, "
                    "hybrid-shard, or "
                    "--offload-what state",
                    o.offload_what, o.strategy));
  if (o.optimizer.starts_with("torch-"))
    throw UsageError(
        fmt::format("--offload {} is for Lockstep's own optimizers, and --optimizer is {}; accepted: {}",
                    o.offload, o.optimizer, o.optimizer.substr(6)));
  if (o.optimizer == kOneBitAdam)
    throw UsageError(fmt::format(
        "--offload {} with --optimizer {}, whose exchange keeps momenta and errors in memory, is not "
        "there; accepted: {}, or --offload none",
        o.offload, o.optimizer, kOwnOptimizers));
  if (o.offload == kHostOffload && o.device == "cpu")
    throw UsageError(
        "--offload host: with --device cpu the optimizer's state is in the host's memory; accepted: a folder "
        "on a "
        "local disk (./host for one of that name), or --device cuda");
  if (o.offload == kHostOffload) return;
  o.offload = std::filesystem::absolute(o.offload).lexically_normal().string();
}

}  // namespace lockstep
