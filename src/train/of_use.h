// Options of a trainer that others make void.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/trainer.h"
#include "train/precision.h"

namespace lockstep {

inline bool is_changed(const GradScalerOptions& now, const GradScalerOptions& fresh) {
  return now.init_scale != fresh.init_scale || now.growth_factor != fresh.growth_factor ||
         now.backoff_factor != fresh.backoff_factor || now.growth_interval != fresh.growth_interval ||
         now.most_skipped != fresh.most_skipped;
}

struct OptionUse {
  const char* recipe;  // what the run's recipe calls it
  bool changed;        // from its default
  bool of_use;
  std::string option;
  std::string beside;  // what makes it so
  const char* accepted;
};

inline std::vector<OptionUse> uses_of(const TrainerOptions& o) {
  const auto assigned = [](const char* option, const auto& value) {
    return fmt::format("{} = {}", option, value);
  };
  const TrainerOptions fresh;
  const ScheduleOptions& rate = o.schedule;
  const bool lars = o.optimizer == "lars", layerwise = lars || o.optimizer == "lamb";
  const bool step = rate.kind == Schedule::step;
  const std::string optimizer = assigned("optimizer", o.optimizer);
  const std::string kind = assigned("schedule.kind", to_string(rate.kind));
  const std::string scaling = assigned("loss_scaling", o.loss_scaling) + " and precision = " + o.precision;
  const std::string device = assigned("device", o.device);
  const bool in_shards = o.strategy == "zero3" || o.strategy == "hybrid-shard";
  return {
      {"momentum", o.momentum != fresh.momentum, lars || o.optimizer.ends_with("sgd"),
       assigned("momentum", o.momentum), optimizer, "sgd, torch-sgd or lars"},
      {"trust_coefficient", o.trust_coefficient != fresh.trust_coefficient, lars,
       assigned("trust_coefficient", o.trust_coefficient), optimizer, "lars"},
      {"trust_clip", o.trust_clip != fresh.trust_clip, layerwise, assigned("trust_clip", o.trust_clip),
       optimizer, "lars or lamb"},
      {"min_lr", rate.final_lr != fresh.schedule.final_lr, depends_on_length(rate.kind),
       assigned("schedule.final_lr", rate.final_lr), kind, "cosine, linear or poly"},
      {"lr_power", rate.power != fresh.schedule.power, rate.kind == Schedule::poly,
       assigned("schedule.power", rate.power), kind, "poly"},
      {"lr_every", rate.every != fresh.schedule.every, step, assigned("schedule.every", rate.every), kind,
       "step"},
      {"lr_factor", rate.factor != fresh.schedule.factor, step, assigned("schedule.factor", rate.factor),
       kind, "step"},
      {"scaler", is_changed(o.scaler, fresh.scaler), scales_loss(o), "scaler", scaling,
       "loss_scaling = on, or auto and precision = fp16"},
      {"deterministic", o.deterministic, o.device != "cpu", "deterministic", device, "cuda"},
      {"tf32", o.tf32, o.device != "cpu", "tf32", device, "cuda"},
      {"cuda_graph", o.cuda_graph, o.device != "cpu", "cuda_graph", device, "cuda"},
      {"offload_params", static_cast<bool>(o.parallel.offload_params), in_shards && o.device == "cpu",
       "parallel.offload_params", in_shards ? device : assigned("strategy", o.strategy),
       "zero3 or hybrid-shard, and device = cpu"},
  };
}

// Throws UsageError that names one that was changed from its default and changes nothing, the option that
// makes it so, and with what it would count.
inline void check_of_use(const TrainerOptions& o) {
  for (const OptionUse& use : uses_of(o))
    if (use.changed && !use.of_use)
      throw UsageError(
          fmt::format("{} changes nothing with {}; accepted: with {}", use.option, use.beside, use.accepted));
}

}  // namespace lockstep
