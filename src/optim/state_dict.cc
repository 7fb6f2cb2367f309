// Optimizer::state_dict and load_state_dict.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "optim/slot.h"

namespace lockstep {
namespace {

constexpr const char* kMaster = "master";

std::string key(const std::string& kind, const std::string& parameter) { return kind + "/" + parameter; }

std::string describe(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

}  // namespace

StateDict Optimizer::state_dict(bool wanted) const {
  const torch::NoGradGuard no_grad;
  StateDict result;
  for (const Slot& slot : slots_)
    if (wanted) result[key("step", slot.name)] = torch::full({}, slot.step, torch::kInt64);
  const auto join = [&](const std::string& kind, auto&& part_of) {
    std::vector<torch::Tensor> parts;
    for (const Slot& slot : slots_) parts.push_back(part_of(slot));
    source_->join(parts, [&](std::size_t i, const torch::Tensor& whole) {
      if (wanted) result[key(kind, slots_[i].name)] = whole.clone(torch::MemoryFormat::Contiguous).cpu();
    });
  };
  for (std::size_t k = 0; k < traits_.state_names.size(); ++k)
    join(traits_.state_names[k], [&](const Slot& slot) { return slot.state[k]; });
  join(kMaster, [](const Slot& slot) { return slot.master; });
  return result;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const torch::Tensor& state : slot.state) bytes += static_cast<std::size_t>(state.nbytes());
  for (const Slot& slot : slots_)
    if (slot.master.defined()) bytes += static_cast<std::size_t>(slot.master.nbytes());
  return bytes;
}

void Optimizer::load_state_dict(const StateDict& state) {
  const torch::NoGradGuard no_grad;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: state dict: {}", traits_.name, why));
  };
  const auto find = [&](const std::string& name, torch::ScalarType dtype,
                        at::IntArrayRef sizes) -> const torch::Tensor& {
    const auto at = state.find(name);
    if (at == state.end()) refuse(fmt::format("'{}' is missing", name));
    const torch::Tensor& tensor = at->second;
    if (!tensor.defined() || tensor.scalar_type() != dtype || tensor.sizes() != sizes)
      refuse(fmt::format("'{}' is {}; accepted: {} [{}]", name, describe(tensor), c10::toString(dtype),
                         fmt::join(sizes, ", ")));
    return tensor;
  };

  std::map<std::string, bool> known;
  std::vector<std::int64_t> steps;
  for (const Slot& slot : slots_) {
    const std::string name = key("step", slot.name);
    steps.push_back(find(name, torch::kInt64, {}).item<std::int64_t>());
    if (steps.back() < 0) refuse(fmt::format("'{}' is {}; accepted: 0 or more", name, steps.back()));
    known[name] = true;
    if (slot.master.defined()) {
      const std::string entry = key(kMaster, slot.name);
      find(entry, torch::kFloat32, slot.whole);
      known[entry] = true;
    }
    for (std::size_t k = 0; k < slot.state.size(); ++k) {
      const std::string entry = key(traits_.state_names[k], slot.name);
      find(entry, slot.state[k].scalar_type(), slot.whole);
      known[entry] = true;
    }
  }
  for (const auto& [name, tensor] : state)
    if (!known.contains(name)) refuse(fmt::format("'{}' belongs to no parameter of this optimizer", name));

  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].step = steps[i];
    if (slots_[i].master.defined())
      slots_[i].master.copy_(source_->cut(i, state.at(key(kMaster, slots_[i].name))));
    for (std::size_t k = 0; k < slots_[i].state.size(); ++k)
      slots_[i].state[k].copy_(source_->cut(i, state.at(key(traits_.state_names[k], slots_[i].name))));
  }
}

}  // namespace lockstep
