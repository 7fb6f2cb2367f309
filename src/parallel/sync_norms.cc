#include "parallel/sync_norms.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr const char* kWhy =
    "SyncBatchNorm takes its statistics over one lane of each worker at once, so that another number of "
    "workers would be another run";

}  // namespace

SyncNorms::SyncNorms(const std::shared_ptr<torch::nn::Module>& model, const Group& group,
                     const SyncNorms* before) {
  const auto add = [&](const std::string& name, const std::shared_ptr<torch::nn::Module>& module) {
    const auto norm = std::dynamic_pointer_cast<SyncBatchNormImpl>(module);
    if (norm == nullptr) return;
    all_.push_back({name, norm});
    const auto same = [&](const Entry& entry) { return entry.norm == norm; };
    if (!norm->group() || (before != nullptr && std::ranges::any_of(before->own_, same)))
      own_.push_back(all_.back());
  };
  add("", model);
  for (const auto& entry : model->named_modules("", /*include_self=*/false)) add(entry.key(), entry.value());
  if (!own_.empty()) part_ = group.split(0);
}

// A group has one board.
SyncNorms::~SyncNorms() {
  for (const Entry& entry : own_)
    if (part_ && entry.norm->group() && entry.norm->group().lane_board() == part_.lane_board())
      entry.norm->join({}, entry.name);
}

void SyncNorms::join() {
  for (const Entry& entry : own_)
    entry.norm->join(part_, entry.name.empty() ? "SyncBatchNorm" : "SyncBatchNorm '" + entry.name + "'");
}

bool SyncNorms::in_training() const {
  return std::ranges::any_of(all_, [](const Entry& entry) { return entry.norm->is_training(); });
}

void SyncNorms::check(const LaneLoop& loop) const {
  if ((loop.everybodys && loop.most == 1) || !in_training()) return;
  throw UsageError("step " + std::to_string(loop.step) + ": " +
                   (loop.everybodys ? "a worker has " + std::to_string(loop.most) + " lanes"
                                    : std::string("a worker has no lane")) +
                   ", and " + kWhy + "; accepted: one lane on every worker in every step");
}

void SyncNorms::check(const LaneInfo& lane) const {
  if ((lane.first && lane.last) || !in_training()) return;
  throw UsageError("lane " + std::to_string(lane.index) + " of step " + std::to_string(lane.step) +
                   " is not the only one of its worker, and " + kWhy +
                   "; accepted: one lane on every worker in every step");
}

void SyncNorms::weigh(double weight) const noexcept {
  for (const Entry& entry : all_) entry.norm->weigh(weight);
}

bool has_sync_norms(torch::nn::Module& model) {
  const auto is_one = [](const torch::nn::Module& module) {
    return module.as<SyncBatchNormImpl>() != nullptr;
  };
  return is_one(model) || std::ranges::any_of(model.modules(/*include_self=*/false),
                                              [&](const auto& module) { return is_one(*module); });
}

void check_sync_norms(torch::nn::Module& model, int lanes, int workers) {
  bool one_each = true;
  for (int worker = 0; worker < workers; ++worker)
    one_each = one_each && lanes_of(worker, workers, lanes).count == 1;
  if (one_each || !has_sync_norms(model)) return;
  const bool as_many = lanes == workers;  // and the tree gives one of them two
  const auto fitting = static_cast<int>(std::bit_ceil(static_cast<unsigned>(lanes)));
  throw UsageError(std::to_string(lanes) + " lanes on " + std::to_string(workers) +
                   " workers are not one on each" +
                   (as_many ? " (lanes are whole subtrees of the sum over them)" : "") + ", and " + kWhy +
                   "; accepted: " + std::to_string(as_many ? fitting : lanes) + " workers" +
                   (as_many ? " with as many lanes" : "") + ", or another norm");
}

}  // namespace lockstep
