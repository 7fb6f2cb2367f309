// Options of a trainer that others make void.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/train/trainer.h"
#include "train/precision.h"

namespace lockstep {

inline bool is_changed(const GradScalerOptions& now, const GradScalerOptions& fresh) {
  return now.init_scale != fresh.init_scale || now.growth_factor != fresh.growth_factor ||
         now.backoff_factor != fresh.backoff_factor || now.growth_interval != fresh.growth_interval ||
         now.most_skipped != fresh.most_skipped;
}

// Throws UsageError that names one that was changed from its default and changes nothing, the option that
// makes it so, and with what it would count.
inline void check_of_use(const TrainerOptions& o) {
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
  const struct {
    bool changed;
    bool of_use;
    std::string option;
    const std::string& beside;
    const char* accepted;
  } cases[] = {
      {o.momentum != fresh.momentum, lars || o.optimizer.ends_with("sgd"), assigned("momentum", o.momentum),
       optimizer, "sgd, torch-sgd or lars"},
      {o.trust_coefficient != fresh.trust_coefficient, lars,
       assigned("trust_coefficient", o.trust_coefficient), optimizer, "lars"},
      {o.trust_clip != fresh.trust_clip, layerwise, assigned("trust_clip", o.trust_clip), optimizer,
       "lars or lamb"},
      {rate.final_lr != fresh.schedule.final_lr, depends_on_length(rate.kind),
       assigned("schedule.final_lr", rate.final_lr), kind, "cosine, linear or poly"},
      {rate.power != fresh.schedule.power, rate.kind == Schedule::poly,
       assigned("schedule.power", rate.power), kind, "poly"},
      {rate.every != fresh.schedule.every, step, assigned("schedule.every", rate.every), kind, "step"},
      {rate.factor != fresh.schedule.factor, step, assigned("schedule.factor", rate.factor), kind, "step"},
      {is_changed(o.scaler, fresh.scaler), scales_loss(o), "scaler", scaling,
       "loss_scaling = on, or auto and precision = fp16"},
      {o.deterministic, o.device != "cpu", "deterministic", device, "cuda"},
      {o.tf32, o.device != "cpu", "tf32", device, "cuda"},
  };
  for (const auto& c : cases)
    if (c.changed && !c.of_use)
      throw UsageError(
          fmt::format("{} changes nothing with {}; accepted: with {}", c.option, c.beside, c.accepted));
}

}  // namespace lockstep
