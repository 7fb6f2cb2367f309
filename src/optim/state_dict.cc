// Optimizer::state_dict and load_state_dict, whole and in parts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "optim/disk_state.h"
#include "optim/host_copies.h"
#include "optim/layout.h"
#include "optim/slot.h"

namespace lockstep {
namespace {

constexpr const char* kMaster = "master";

std::string key(const std::string& kind, const std::string& parameter) { return kind + "/" + parameter; }

constexpr const char* kStep = "step";

std::string describe(const StateEntry& form) {
  if (form.dtype == torch::ScalarType::Undefined) return "undefined";
  return fmt::format("{} [{}]", c10::toString(form.dtype), fmt::join(form.sizes, ", "));
}

StateEntry form_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {.dtype = torch::ScalarType::Undefined, .sizes = {}};
  return {.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
}

}  // namespace

StateDict Optimizer::state_dict(bool wanted) const {
  const torch::NoGradGuard no_grad;
  for (const Slot& slot : slots_) slot.check_on_disk(traits_.name);
  StateDict result;
  for (const Slot& slot : slots_)
    if (wanted) result[key(kStep, slot.name)] = torch::full({}, slot.step, torch::kInt64);
  const auto join = [&](const std::string& kind, auto&& part_of) {
    std::vector<torch::Tensor> parts;
    for (const Slot& slot : slots_) parts.push_back(part_of(slot));
    source_->join(parts, [&](std::size_t i, const torch::Tensor& whole) {
      if (wanted) result[key(kind, slots_[i].name)] = whole.clone(torch::MemoryFormat::Contiguous).cpu();
    });
  };
  const std::size_t states = traits_.state_names.size();
  for (std::size_t k = 0; k < states; ++k)
    join(traits_.state_names[k],
         [&](const Slot& slot) { return slot.on_disk ? fetch(slot, k) : slot.state[k]; });
  join(kMaster,
       [&](const Slot& slot) { return slot.on_disk && slot.has_master ? fetch(slot, states) : slot.master; });
  return result;
}

std::size_t Optimizer::state_bytes() const {
  if (host_copies_) return 0;  // it is not where the parameters are
  std::size_t bytes = disk_ ? disk_->staging_bytes() : 0;
  for (const Slot& slot : slots_)
    for (const torch::Tensor& state : slot.state) bytes += static_cast<std::size_t>(state.nbytes());
  for (const Slot& slot : slots_)
    if (slot.master.defined()) bytes += static_cast<std::size_t>(slot.master.nbytes());
  return bytes;
}

std::vector<StatePart> Optimizer::state_parts() const {
  const std::vector<NamedTensor> parameters = source_->parameters();
  std::vector<StatePart> parts;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    slot.check_on_disk(traits_.name);
    parts.push_back({.name = key(kStep, slot.name),
                     .whole = {},
                     .elements = {0, 1},
                     .dtype = torch::kInt64,
                     .tensor = torch::full({}, slot.step, torch::kInt64),
                     .slice = i,
                     .everywhere = true});
    const auto add = [&](const std::string& kind, std::size_t array, const torch::Tensor& tensor) {
      parts.push_back({.name = key(kind, slot.name),
                       .whole = slot.whole,
                       .elements = slot.elements,
                       .dtype = slot.kept_type(),
                       .tensor = tensor,
                       .slice = i,
                       .plain = parameters[i].tensor.is_contiguous(),
                       .array = array});
      if (!slot.on_disk) return;
      parts.back().stream = [this, i, array](const StatePart::Take& take) { disk_->read(i, array, take); };
      parts.back().fetch = [this, i, array] { return fetch(slots_[i], array); };
    };
    const std::size_t states = traits_.state_names.size();
    for (std::size_t k = 0; k < states; ++k)
      add(traits_.state_names[k], k, slot.on_disk ? torch::Tensor() : slot.state[k]);
    if (slot.has_master) add(kMaster, states, slot.master);
  }
  return parts;
}

void Optimizer::check_state(const std::map<std::string, StateEntry>& entries) const {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: state dict: {}", traits_.name, why));
  };
  std::map<std::string, bool> known;
  for (const StatePart& part : state_parts()) {
    known[part.name] = true;
    const auto at = entries.find(part.name);
    if (at == entries.end()) refuse(fmt::format("'{}' is missing", part.name));
    const StateEntry expected{.dtype = part.dtype, .sizes = part.whole};
    if (at->second.dtype != expected.dtype || at->second.sizes != expected.sizes)
      refuse(fmt::format("'{}' is {}; accepted: {}", part.name, describe(at->second), describe(expected)));
  }
  for (const auto& [name, form] : entries)
    if (!known.contains(name)) refuse(fmt::format("'{}' belongs to no parameter of this optimizer", name));
}

void Optimizer::load_parts(const std::function<void(const StatePart& part)>& read) {
  const torch::NoGradGuard no_grad;
  const std::vector<StatePart> parts = state_parts();
  std::vector<std::int64_t> steps;  // all of them before anything changes
  for (const StatePart& part : parts) {
    if (!part.everywhere) continue;
    read(part);
    steps.push_back(part.tensor.item<std::int64_t>());
    if (steps.back() < 0)
      throw UsageError(fmt::format("{}: state dict: '{}' is {}; accepted: 0 or more", traits_.name, part.name,
                                   steps.back()));
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].step = steps[i];
  for (const StatePart& part : parts) {
    if (part.everywhere) continue;
    if (!slots_[part.slice].on_disk) {
      read(part);
      continue;
    }
    StatePart held = part;
    held.tensor = empty_state(slots_[part.slice].parameter, part.dtype);
    read(held);
    disk_->write(part.slice, part.array,
                 {static_cast<const std::byte*>(held.tensor.data_ptr()), held.tensor.nbytes()});
  }
}

void Optimizer::load_state_dict(const StateDict& state) {
  std::map<std::string, StateEntry> entries;
  for (const auto& [name, tensor] : state) entries.emplace(name, form_of(tensor));
  check_state(entries);
  load_parts([&](const StatePart& part) {
    const torch::Tensor& whole = state.at(part.name);
    torch::Tensor(part.tensor).copy_(part.everywhere ? whole : source_->cut(part.slice, whole));
  });
}

}  // namespace lockstep
