#include "lockstep/optim/layerwise.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "optim/layer_kernels.h"
#include "optim/layer_norms.h"
#include "optim/offloaded.h"
#include "optim/require.h"
#include "optim/slot.h"

namespace lockstep {
namespace {

std::size_t elements_of(const std::vector<std::int64_t>& sizes) {
  std::size_t count = 1;
  for (const std::int64_t size : sizes) count *= static_cast<std::size_t>(size);
  return count;
}

// Checks the options, and names the state that they need.
std::vector<std::string> state_of(const LARSOptions& options) {
  require_at_least_zero("LARS", "momentum", options.momentum);
  require_at_least_zero("LARS", "trust_coefficient", options.trust_coefficient);
  require_at_least_zero("LARS", "eps", options.eps);
  require_at_least_zero("LARS", "trust_clip", options.trust_clip);
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

std::vector<std::string> state_of(const LAMBOptions& options) {
  const char* const range = "0 or more and less than 1";
  require(options.beta1 >= 0 && options.beta1 < 1, "LAMB", "beta1", options.beta1, range);
  require(options.beta2 >= 0 && options.beta2 < 1, "LAMB", "beta2", options.beta2, range);
  require_at_least_zero("LAMB", "eps", options.eps);
  require_at_least_zero("LAMB", "trust_clip", options.trust_clip);
  return {"exp_avg", "exp_avg_sq"};
}

kernel::LambUpdate lamb_update(const LAMBOptions& options, std::int64_t step, double weight_decay) {
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .correction1 = 1 - std::pow(options.beta1, step),
          .correction2 = std::sqrt(1 - std::pow(options.beta2, step)),
          .weight_decay = weight_decay};
}

}  // namespace

LayerwiseOptimizer::LayerwiseOptimizer(GradientSource& source, Traits traits, Adaptation adaptation)
    : Optimizer(source, std::move(traits)), adaptation_(adaptation) {
  check_devices();
}

LayerwiseOptimizer::LayerwiseOptimizer(const std::vector<NamedTensor>& parameters, Traits traits,
                                       Adaptation adaptation)
    : Optimizer(parameters, std::move(traits)), adaptation_(adaptation) {
  check_devices();
}

LayerwiseOptimizer::~LayerwiseOptimizer() = default;

void LayerwiseOptimizer::check_devices() const {
  for (const Slot& slot : slots_) {
    if (slot.parameter.device() != slots_.front().parameter.device())
      throw UsageError(fmt::format("{}: parameter '{}' is on {}, '{}' on {}; accepted: all on one device",
                                   traits_.name, slot.name, slot.parameter.device().str(),
                                   slots_.front().name, slots_.front().parameter.device().str()));
    if (!slot.parameter.is_cpu() &&
        kernel::device_layers(device_of(slot.parameter, slot.name).kind) == nullptr)
      throw UsageError(
          fmt::format("{}: parameter '{}' is on {}, which has no kernels for norms of whole "
                      "parameters; accepted: cpu",
                      traits_.name, slot.name, slot.parameter.device().str()));
  }
}

bool LayerwiseOptimizer::is_adapted(const Slot& slot) const {
  return slot.adapt.value_or(adaptation_.vectors || slot.whole.size() > 1);
}

void LayerwiseOptimizer::adapt(std::span<Update> updates) {
  std::vector<LayerNorms::Part> parts;
  for (const Slice& slice : source_->slices())
    parts.push_back({.whole = elements_of(slice.whole), .own = slice.elements});
  if (!norms_)
    norms_ = std::make_unique<LayerNorms>(parts, [this](auto values) { source_->add_parts(values); });

  std::vector<const Update*> updated(slots_.size(), nullptr);
  std::vector<bool> wanted(slots_.size(), false);
  for (Update& each : updates) {
    const auto i = static_cast<std::size_t>(&each.slot - slots_.data());
    updated[i] = &each;
    wanted[i] = true;
    if (!is_adapted(each.slot) && !each.slot.weight_decay) each.pass.weight_decay = 0;
  }
  const bool here = slots_.empty() || slots_.front().parameter.is_cpu();
  std::vector<LayerNorms::Norms> norms;
  if (here) {
    norms_->begin();
    measure_here(updated);
    measure_on_disk(updated);
    norms = norms_->end(wanted);
  } else {
    norms = norms_->measure_there(wanted, slots_.front().parameter.device(),
                                  [&](const auto& to) { measure_all_there(updates, to); });
  }
  for (Update& each : updates) {
    const auto& [parameter, second] = norms[static_cast<std::size_t>(&each.slot - slots_.data())];
    if (!is_adapted(each.slot) || !(parameter > 0 && second > 0)) continue;
    const double ratio = trust_ratio(parameter, second, each.pass.weight_decay);
    each.pass.lr *= adaptation_.trust_clip > 0 ? std::min(ratio, adaptation_.trust_clip) : ratio;
  }
}

void LayerwiseOptimizer::measure_block(const Update& update, const kernel::Elements& block, double* parameter,
                                       double* second) const {
  kernel::widen(block.kept_dtype(), block.kept_parameter(), parameter, block.count);
  measure(block, update.pass.step, update.pass.weight_decay, second);
}

// Whether what the norms are of is on disk: of a slot without a master LARS needs none of it.
bool LayerwiseOptimizer::measured_on_disk(const Slot& slot) const {
  return slot.on_disk && (slot.has_master || traits_.adapts == Adapts::to_moments);
}

void LayerwiseOptimizer::measure_here(std::span<const Update* const> updated) {
  const auto measured = [&](std::size_t i) { return updated[i] != nullptr && !measured_on_disk(slots_[i]); };
  bool any = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) any = any || measured(i);
  if (!any) return;
  for_each_held(SliceStore::Use::read, [&](std::span<const std::size_t> slices) {
    std::vector<LayerNorms::Run> runs;
    for (const std::size_t i : slices)
      if (measured(i)) runs.push_back({i, slots_[i].elements});
    norms_->add(
        runs,
        [&](std::size_t i, const ElementRange& range, double* parameter, double* second) {
          const Update& each = *updated[i];
          const std::size_t begin = range.begin - slots_[i].elements.begin;
          measure_block(each, each.elements_now().part(begin, range.count()), parameter, second);
        },
        crew(), static_cast<std::size_t>(at::get_num_threads()));
  });
}

void LayerwiseOptimizer::measure_on_disk(std::span<const Update* const> updated) {
  std::vector<bool> wanted(slots_.size(), false);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    wanted[i] = updated[i] != nullptr && measured_on_disk(slots_[i]);
  if (std::ranges::find(wanted, true) == wanted.end()) return;
  const std::size_t states = traits_.state_names.size();
  std::vector<const StateInMemory*> there(slots_.size(), nullptr);  // in the page at hand
  disk_->pass(
      wanted,
      [&](std::size_t) { return traits_.adapts == Adapts::to_moments ? PageUse::update : PageUse::read; },
      [&](std::span<const StateInMemory> parts) {
        hold(parts, SliceStore::Use::read);
        std::vector<LayerNorms::Run> runs;
        for (const StateInMemory& part : parts) {
          const std::size_t begin = slots_[part.slice].elements.begin + part.begin;
          runs.push_back({part.slice, {begin, begin + part.count}});
          there[part.slice] = &part;
        }
        norms_->add(
            runs,
            [&](std::size_t i, const ElementRange& range, double* parameter, double* second) {
              const Update& each = *updated[i];
              const std::size_t begin = range.begin - slots_[i].elements.begin - there[i]->begin;
              const kernel::Elements elements = elements_in(*there[i], each, states);
              measure_block(each, elements.part(begin, range.count()), parameter, second);
            },
            crew(), static_cast<std::size_t>(at::get_num_threads()));
      });
}

void LayerwiseOptimizer::measure_all_there(std::span<const Update> updates,
                                           const kernel::LayerSums& to) const {
  const std::span<const Slice> slices = source_->slices();
  std::map<std::pair<std::int64_t, double>, std::vector<kernel::LayerPart>> lists;
  for (const Update& each : updates) {
    const auto i = static_cast<std::size_t>(&each.slot - slots_.data());
    lists[{each.pass.step, each.pass.weight_decay}].push_back({.elements = each.elements,
                                                               .begin = slices[i].elements.begin,
                                                               .first_block = norms_->first_block(i)});
  }
  for (const auto& [alike, parts] : lists) measure_there(parts, alike.first, alike.second, to);
}

LARS::LARS(GradientSource& source, LARSOptions options)
    : LayerwiseOptimizer(source,
                         {"LARS", state_of(options), options.lr, options.weight_decay, options.master_weights,
                          options.offload, Adapts::to_parameters},
                         {options.trust_clip, options.vectors}),
      options_(options) {}

LARS::LARS(const std::vector<NamedTensor>& parameters, LARSOptions options)
    : LayerwiseOptimizer(parameters,
                         {"LARS", state_of(options), options.lr, options.weight_decay, options.master_weights,
                          options.offload, Adapts::to_parameters},
                         {options.trust_clip, options.vectors}),
      options_(options) {}

void LARS::measure(const kernel::Elements& elements, std::int64_t, double, double* second) const {
  kernel::widen(elements.dtype, elements.gradient, second, elements.count);
  if (elements.gradient_factor == 1) return;
  for (std::size_t i = 0; i < elements.count; ++i) second[i] *= elements.gradient_factor;
}

void LARS::measure_there(std::span<const kernel::LayerPart> parts, std::int64_t, double,
                         const kernel::LayerSums& to) const {
  kernel::device_layers(parts.front().elements.device.kind)->measure_lars(parts, to);
}

double LARS::trust_ratio(double parameter_norm, double gradient_norm, double weight_decay) const {
  return options_.trust_coefficient * parameter_norm /
         (gradient_norm + weight_decay * parameter_norm + options_.eps);
}

// SGD's rule, with the rate as the gain with which gradients enter the momentum. The momentum is 0 before the
// first step.
void LARS::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  if (options_.momentum == 0)
    return kernel::update(
        list,
        kernel::SgdUpdate{.kind = kernel::Momentum::none, .lr = pass.lr, .weight_decay = pass.weight_decay});
  kernel::update(list, kernel::SgdUpdate{.kind = kernel::Momentum::keep,
                                         .lr = 1,
                                         .momentum = options_.momentum,
                                         .gain = pass.lr,
                                         .weight_decay = pass.weight_decay});
}

LAMB::LAMB(GradientSource& source, LAMBOptions options)
    : LayerwiseOptimizer(source,
                         {"LAMB", state_of(options), options.lr, options.weight_decay, options.master_weights,
                          options.offload, Adapts::to_moments},
                         {options.trust_clip, options.vectors}),
      options_(options) {}

LAMB::LAMB(const std::vector<NamedTensor>& parameters, LAMBOptions options)
    : LayerwiseOptimizer(parameters,
                         {"LAMB", state_of(options), options.lr, options.weight_decay, options.master_weights,
                          options.offload, Adapts::to_moments},
                         {options.trust_clip, options.vectors}),
      options_(options) {}

// The moments move on here, once an element; update() then takes the direction from them again, which costs
// less than keeping it.
void LAMB::measure(const kernel::Elements& elements, std::int64_t step, double weight_decay,
                   double* second) const {
  const kernel::LambUpdate lamb = lamb_update(options_, step, weight_decay);
  kernel::lamb_moments(elements, lamb);
  kernel::lamb_direction(elements, lamb, second);
}

void LAMB::measure_there(std::span<const kernel::LayerPart> parts, std::int64_t step, double weight_decay,
                         const kernel::LayerSums& to) const {
  kernel::device_layers(parts.front().elements.device.kind)
      ->measure_lamb(parts, lamb_update(options_, step, weight_decay), to);
}

double LAMB::trust_ratio(double parameter_norm, double direction_norm, double) const {
  return parameter_norm / direction_norm;
}

void LAMB::update(std::span<const kernel::Elements> list, const Pass& pass) const {
  const kernel::LambUpdate lamb = lamb_update(options_, pass.step, pass.weight_decay);
  if (const Device device = list.front().device; device.kind != Device::Kind::cpu)
    return kernel::device_layers(device.kind)->lamb_step(list, lamb, pass.lr);
  for (const kernel::Elements& elements : list) kernel::lamb_step(elements, lamb, pass.lr);
}

}  // namespace lockstep
