#include "lockstep/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "optim/crew.h"
#include "optim/disk_state.h"
#include "optim/host_copies.h"
#include "optim/layout.h"
#include "optim/listed_parameters.h"
#include "optim/require.h"
#include "optim/slot.h"
#include "optim/update.h"

namespace lockstep {
namespace {

std::string text(at::IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

void check_parameter(const std::string& optimizer, const NamedTensor& parameter,
                     std::set<std::string>& seen) {
  const std::string& name = parameter.name;
  const torch::Tensor& tensor = parameter.tensor;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: parameter '{}' {}", optimizer, name, why));
  };
  if (!seen.insert(name).second) refuse("is listed twice; accepted: each name once");
  if (!tensor.defined()) refuse("is undefined");
  if (tensor.layout() != torch::kStrided)
    refuse(fmt::format("has layout {}; accepted: dense (Strided)", c10::str(tensor.layout())));
  if (!kernel::has_updates(device_of(tensor, fmt::format("{}: parameter '{}'", optimizer, name)).kind))
    refuse(fmt::format("is on {}, for which this program has no optimizer kernels; accepted: cpu",
                       tensor.device().str()));
  if (!float_dtype(tensor))
    refuse(fmt::format("has type {}; accepted: Float, Double, Half, BFloat16",
                       c10::toString(tensor.scalar_type())));
}

}  // namespace

Optimizer::Optimizer(GradientSource& source, Traits traits)
    : source_(&source), traits_(std::move(traits)), lr_(traits_.lr) {
  make_slots();
}

Optimizer::Optimizer(const std::vector<NamedTensor>& parameters, Traits traits)
    : own_source_(std::make_unique<ListedParameters>(parameters)),
      source_(own_source_.get()),
      traits_(std::move(traits)),
      lr_(traits_.lr) {
  make_slots();
}

void Optimizer::make_slots() {
  require_at_least_zero(traits_.name, "lr", lr_);
  require_at_least_zero(traits_.name, "weight_decay", traits_.weight_decay);
  std::set<std::string> seen;
  for (const NamedTensor& parameter : source_->parameters()) check_parameter(traits_.name, parameter, seen);
  if (SliceStore* const store = source_->store())
    store->announce_reads(traits_.adapts == Adapts::to_nothing ? 0 : 1);  // for norms
  std::vector<torch::Tensor> updated;
  for (const Slice& slice : source_->slices()) {
    slots_.push_back({.name = slice.name,
                      .whole = slice.whole,
                      .elements = slice.elements,
                      .parameter = slice.parameter,
                      .state = {}});
    slots_.back().has_master =
        traits_.master_weights == MasterWeights::f32 && slice.parameter.element_size() == 2;
    updated.push_back(slice.parameter);
  }
  if (traits_.offload && !updated.empty() && !updated.front().is_cpu()) {
    leave_device();
    for (std::size_t k = 0; k < slots_.size(); ++k) updated[k] = slots_[k].parameter;
  } else if (traits_.offload.host && !updated.empty()) {
    throw UsageError(traits_.name +
                     ": offload: state of parameters on cpu is in the host's memory; accepted: "
                     "a folder, or parameters on a GPU");
  }
  if (!traits_.offload.folder.empty()) return make_slots_on_disk();
  auto state = allocate_state(updated, traits_.state_names.size(), traits_.master_weights);
  for (std::size_t k = 0; k < slots_.size(); ++k) slots_[k].state = std::move(state[k]);
  if (traits_.master_weights == MasterWeights::f32) make_masters();
}

void Optimizer::make_masters() {
  const torch::NoGradGuard no_grad;
  std::vector<Slot*> narrow;
  std::vector<torch::Tensor> parameters;
  for (Slot& slot : slots_) {
    if (!slot.has_master) continue;
    narrow.push_back(&slot);
    parameters.push_back(slot.parameter);
  }
  const auto masters = allocate_state(parameters, 1, MasterWeights::f32);
  for (std::size_t k = 0; k < narrow.size(); ++k) narrow[k]->master = masters[k][0];
  for_each_held(SliceStore::Use::read, [&](std::span<const std::size_t> slices) {
    for (const std::size_t k : slices)
      if (slots_[k].master.defined()) slots_[k].master.copy_(slots_[k].parameter);
  });
  if (SliceStore* const store = source_->store()) store->let_go();
  remember_writes();
}

// All slices, whose parameters are in memory meanwhile: at once, or run by run where they are on disk.
void Optimizer::for_each_held(SliceStore::Use use,
                              const std::function<void(std::span<const std::size_t> slices)>& fn) const {
  SliceStore* const store = source_->store();
  if (store == nullptr) {
    std::vector<std::size_t> all(slots_.size());
    std::iota(all.begin(), all.end(), 0);
    return fn(all);
  }
  for (const std::vector<std::size_t>& run : store->runs()) {
    store->hold(run, use);
    fn(run);
  }
}

void Optimizer::remember_writes() {
  const std::vector<NamedTensor> parameters = source_->parameters();
  for (std::size_t k = 0; k < slots_.size(); ++k) slots_[k].version = parameters[k].tensor._version();
}

void Optimizer::take_over() {
  if (host_copies_) take_over_from_device();
  if (traits_.master_weights != MasterWeights::f32) return;
  const std::vector<NamedTensor> parameters = source_->parameters();
  const auto written = [&](std::size_t k) {
    return slots_[k].master.defined() && parameters[k].tensor._version() != slots_[k].version;
  };
  bool any = false;
  for (std::size_t k = 0; k < slots_.size(); ++k) any = any || written(k);
  if (any)
    for_each_held(SliceStore::Use::read, [&](std::span<const std::size_t> slices) {
      for (const std::size_t k : slices) {
        if (!written(k)) continue;
        const Slot& slot = slots_[k];
        const torch::Tensor same = slot.master.to(slot.parameter.scalar_type()).eq(slot.parameter);
        slot.master.copy_(torch::where(same, slot.master, slot.parameter.to(torch::kFloat32)));
      }
    });
  if (disk_) take_over_on_disk(parameters);
}

Optimizer::~Optimizer() = default;

void Optimizer::adapt(std::span<Update>) {}
void Optimizer::updated() {}

void Optimizer::set_lr(double lr) {
  require_at_least_zero(traits_.name, "lr", lr);
  lr_ = lr;
}

std::size_t Optimizer::add_group(ParameterGroup group) {
  if (!group.match) throw UsageError(traits_.name + ": a parameter group without `match`");
  require_at_least_zero(traits_.name, "lr_scale", group.lr_scale);
  if (group.weight_decay) require_at_least_zero(traits_.name, "weight_decay", *group.weight_decay);
  std::size_t matched = 0;
  for (Slot& slot : slots_) {
    if (!group.match(slot.name)) continue;
    slot.lr_scale = group.lr_scale;
    slot.weight_decay = group.weight_decay;
    slot.adapt = group.adapt;
    ++matched;
  }
  return matched;
}

void Optimizer::zero_grad() {
  for (const NamedTensor& parameter : source_->parameters()) parameter.tensor.mutable_grad().reset();
  source_->end_step();  // gradients that were exchanged and not used are given up
}

// A 16-bit parameter's gradient that was added up in f32.
bool Optimizer::is_wide(const Slot& slot, const torch::Tensor& gradient) {
  return slot.has_master && gradient.scalar_type() == torch::kFloat32;
}

void Optimizer::check_gradient(const Slot& slot, const torch::Tensor& gradient) const {
  const torch::Tensor& parameter = slot.parameter;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: the gradient of '{}' {}", traits_.name, slot.name, why));
  };
  if (gradient.layout() != torch::kStrided)
    refuse(fmt::format("has layout {}; accepted: dense (Strided)", c10::str(gradient.layout())));
  if (gradient.sizes() != parameter.sizes())
    refuse(
        fmt::format("has shape {}; its parameter has {}", text(gradient.sizes()), text(parameter.sizes())));
  if ((gradient.scalar_type() != parameter.scalar_type() && !is_wide(slot, gradient)) ||
      gradient.device() != parameter.device())
    refuse(
        fmt::format("is {} on {}; its parameter is {} on {}; accepted: the parameter's type and device, "
                    "which change before a strategy or an optimizer is made",
                    c10::toString(gradient.scalar_type()), gradient.device().str(),
                    c10::toString(parameter.scalar_type()), parameter.device().str()));
  for (const torch::Tensor& state : slot.state)
    if (state.scalar_type() != slot.kept_type() || state.sizes() != parameter.sizes())
      refuse(
          fmt::format("is {} {}, but the optimizer was made for {} {}; make a new optimizer after changing "
                      "parameters",
                      c10::toString(parameter.scalar_type()), text(parameter.sizes()),
                      c10::toString(state.scalar_type()), text(state.sizes())));
}

void Optimizer::step(double gradient_scale) {
  require(std::isfinite(gradient_scale) && gradient_scale > 0, traits_.name, "gradient_scale", gradient_scale,
          "more than 0, finite");
  try {
    take_step(gradient_scale);
  } catch (...) {
    let_go();
    throw;
  }
}

// Of slices on disk none stays in memory: what others write there meanwhile the next step would not see.
void Optimizer::let_go() const noexcept {
  if (SliceStore* const store = source_->store()) try {
      store->let_go();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who holds them next is told
    }
}

void Optimizer::take_step(double gradient_scale) {
  const torch::NoGradGuard no_grad;
  source_->synchronize();
  const std::span<const Slice> slices = source_->slices();
  const SliceStore* const store = source_->store();
  for (const Slot& slot : slots_) slot.check_on_disk(traits_.name);
  take_over();
  if (host_copies_) host_copies_->bring(slices);
  std::vector<Update> updates;
  updates.reserve(slots_.size());
  for (std::size_t k = 0; k < slots_.size(); ++k) {
    Slot& slot = slots_[k];
    const torch::Tensor& gradient = host_copies_ ? host_copies_->gradient(k) : slices[k].gradient;
    if (!gradient.defined()) continue;
    check_gradient(slot, gradient);
    // A gradient of f32 updates the master as any f32 parameter, and that is rounded behind it.
    const bool wide = is_wide(slot, gradient);
    const bool master = slot.master.defined() && !wide;
    std::vector<torch::Tensor> kept = slot.state;  // and the master behind it
    if (master) kept.push_back(slot.master);
    // Of state on disk the arrays come later, a page at a time.
    Arrays arrays(wide && !slot.on_disk ? slot.master : slot.parameter, gradient, std::move(kept));
    const std::size_t states = slot.state.size();
    const kernel::Elements elements{.dtype = *float_dtype(gradient),
                                    .parameter = wide && slot.on_disk ? nullptr : arrays.parameter(),
                                    .gradient = arrays.gradient(),
                                    .first = states > 0 ? arrays.state(0) : nullptr,
                                    .second = states > 1 ? arrays.state(1) : nullptr,
                                    .count = arrays.count(),
                                    .device = device_of(slot.parameter, slot.name),
                                    .master = master ? arrays.state(states) : nullptr,
                                    .gradient_factor = 1 / gradient_scale};
    updates.push_back({.slot = slot,
                       .arrays = std::move(arrays),
                       .elements = elements,
                       .pass = {.step = slot.step + 1,
                                .lr = lr_ * slot.lr_scale,
                                .weight_decay = slot.weight_decay.value_or(traits_.weight_decay)},
                       .to_stored_master = wide && slot.on_disk,
                       .parameter_comes = store != nullptr && store->has(k) && !(wide && !slot.on_disk)});
  }
  if (host_copies_ && traits_.adapts != Adapts::to_nothing)
    for (std::size_t k = 0; k < slots_.size(); ++k) host_copies_->await(k);
  adapt(updates);
  source_->begin_updates();
  run(updates);
  for (const Update& each : updates) {
    each.slot.step = each.pass.step;
    if (each.elements.device.kind != Device::Kind::cpu || each.slot.on_disk) each.write_back();
    each.slot.parameter.unsafeGetTensorImpl()->bump_version();  // a graph that saved it must notice
  }
  source_->share_updates();
  if (traits_.master_weights == MasterWeights::f32 || host_copies_) remember_writes();
  if (disk_) disk_->end_step();
  source_->end_step();
  updated();
}

Crew& Optimizer::crew() {
  if (!crew_) crew_ = std::make_unique<Crew>();
  return *crew_;
}

// What lies on another device than the processor, whose streams have threads of their own: all slices that
// are updated alike in one call, so that they are one launch.
void Optimizer::run_on_devices(const std::vector<Update>& updates) {
  using Alike = std::tuple<Device::Kind, int, Pass>;
  std::map<Alike, std::vector<kernel::Elements>> lists;
  for (const Update& each : updates)
    if (const Device device = each.elements.device; device.kind != Device::Kind::cpu)
      lists[{device.kind, device.index, each.pass}].push_back(each.elements);
  for (const auto& [alike, list] : lists) update(list, std::get<Pass>(alike));
}

void Optimizer::run(const std::vector<Update>& updates) {
  if (host_copies_ && !disk_) return run_on_host(updates);
  run_on_devices(updates);
  std::vector<const Update*> here(slots_.size(), nullptr);  // on the processor, with their state in memory
  bool any = false;
  for (const Update& each : updates) {
    const auto k = static_cast<std::size_t>(&each.slot - slots_.data());
    if (each.elements.device.kind == Device::Kind::cpu && !each.slot.on_disk) here[k] = &each;
    if (host_copies_ && here[k] != nullptr) host_copies_->await(k);
    any = any || !each.slot.on_disk;
  }
  if (any)
    for_each_held(SliceStore::Use::update, [&](std::span<const std::size_t> slices) {
      run_here(here, slices);
      for (const std::size_t k : slices)
        if (here[k] != nullptr) here[k]->write_back();
    });
  if (disk_) run_on_disk(updates);
}

// Elements are independent of each other, so the cut is free to follow the number of threads.
void Optimizer::run_here(const std::vector<const Update*>& updates, std::span<const std::size_t> slices) {
  struct Part {
    const Update* update;
    kernel::Elements elements;
  };
  std::vector<Part> parts;
  for (const std::size_t k : slices) {
    if (updates[k] == nullptr) continue;
    const kernel::Elements elements = updates[k]->elements_now();
    for (std::size_t begin = 0; begin < elements.count; begin += kPartElements)
      parts.push_back({updates[k], elements.part(begin, std::min(kPartElements, elements.count - begin))});
  }
  crew().run(parts.size(), static_cast<std::size_t>(at::get_num_threads()),
             [&](std::size_t k) { update(std::span(&parts[k].elements, 1), parts[k].update->pass); });
}

}  // namespace lockstep
