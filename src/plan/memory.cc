#include "plan/memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "base/suggest.h"

namespace lockstep {
namespace {

constexpr int kFirstOptimizerStage = 1;
constexpr int kFirstGradientStage = 2;
constexpr int kFirstParameterStage = 3;

double gradient_bytes(const ParameterKind& kind, const StateForm& form) {
  return kind.count * std::max(kind.element_bytes, form.least_gradient_bytes);
}

double optimizer_bytes(const ParameterKind& kind, const StateForm& form) {
  const bool has_master = kind.element_bytes == 2 && form.master_bytes > 0;
  return kind.count *
         (has_master ? form.master_bytes * (1 + form.moments) : kind.element_bytes * form.moments);
}

// Buckets of units end where units end.
double most_of_bucket(const ModelSize& model, const StateForm& form) {
  const bool ends = form.has_to_gather() && model.largest_unit_bytes > 0;
  return ends ? std::min(form.bucket_bytes, model.largest_unit_bytes) : form.bucket_bytes;
}

double whole_pages(double bytes, const StateForm& form) {
  const double page = form.staging_bytes / kPagesInMemory;
  return std::ceil(bytes / page) * page;
}

}  // namespace

int stage_of(const std::string& strategy) {
  if (strategy == kHybridShard) return kFirstParameterStage;
  expect_one_of("strategy", strategy, {std::begin(kStageStrategies), std::end(kStageStrategies)});
  return static_cast<int>(std::ranges::find(kStageStrategies, strategy) - std::begin(kStageStrategies));
}

int moments_of(const std::string& optimizer, double momentum) {
  if (!optimizer.ends_with("sgd") && optimizer != "lars") return 2;
  return momentum == 0 ? 0 : 1;
}

int gradient_sets(int lanes) { return std::bit_width((static_cast<unsigned>(std::max(1, lanes)) + 1) / 2); }

double ModelSize::count() const {
  double all = 0;
  for (const ParameterKind& kind : parameters) all += kind.count;
  return all;
}

StateBytes state_bytes(const ModelSize& model, const StateForm& form) {
  StateBytes all;  // of the trained parameters, once
  double frozen = 0;
  for (const ParameterKind& kind : model.parameters) {
    (kind.trained ? all.parameters : frozen) += kind.count * kind.element_bytes;
    if (!kind.trained) continue;
    all.gradients += gradient_bytes(kind, form);
    all.optimizer += optimizer_bytes(kind, form);
  }
  StateBytes held = all;
  held.gradients = all.gradients * gradient_sets(form.lanes);
  if (form.stage >= kFirstOptimizerStage) held.optimizer = all.optimizer / form.workers;
  if (form.stage >= kFirstGradientStage) {
    const double bucket = std::max(most_of_bucket(model, form), gradient_bytes(model.largest_tensor, form));
    const bool one_lane = form.lanes <= 1;
    held.gradients = all.gradients / form.workers + (one_lane ? 0 : held.gradients);
    if (one_lane) held.in_flight += std::min(all.gradients, kBucketsInFlight * bucket);
  }
  if (form.has_to_gather()) {
    held.parameters = all.parameters / form.sharers;
    held.in_flight += std::min(all.parameters, kGatheredUnits * model.largest_unit_bytes);
  } else if (form.stage >= kFirstParameterStage) {
    const ParameterKind& tensor = model.largest_tensor;
    const double bucket = std::max(form.bucket_bytes, tensor.count * tensor.element_bytes);
    held.parameters = all.parameters / form.machine_workers;
    if (form.machine_workers < form.workers)
      held.in_flight += std::min(all.parameters, kBucketsArriving * bucket);
  }
  if (form.params_on_disk && form.stage >= kFirstParameterStage) {
    const ParameterKind& tensor = model.largest_tensor;
    const double bucket = std::max(most_of_bucket(model, form), tensor.count * tensor.element_bytes);
    held.params_on_disk = held.parameters;
    held.parameters = std::min(held.parameters, kHeldPartsInMemory * bucket / form.sharers +
                                                    kOwnPartsInMemory * bucket / form.workers);
  }
  held.parameters += frozen;
  if (form.staging_bytes > 0) {
    held.on_disk = held.optimizer;
    held.optimizer = form.on_gpus ? 0 : std::min(whole_pages(held.on_disk, form), form.staging_bytes);
  }
  return held;
}

}  // namespace lockstep
