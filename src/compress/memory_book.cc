#include "compress/memory_book.h"

#include <torch/serialize.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::compress {
namespace {

std::string key_of(const std::string& kind, int subtree, const std::string& parameter) {
  return kind + "/" + (subtree < 0 ? "" : std::to_string(subtree) + "/") + parameter;
}

std::string bytes_of(const MemoryBook::State& tensors) {
  c10::Dict<std::string, torch::Tensor> dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  const std::vector<char> bytes = torch::pickle_save(dict);
  return {bytes.begin(), bytes.end()};
}

void add_from(const std::string& bytes, MemoryBook::State& tensors) {
  for (const auto& entry : torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict())
    tensors.insert_or_assign(entry.key().toStringRef(), entry.value().toTensor());
}

std::span<float> elements(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

void MemoryBook::declare(const std::string& key, int subtree, const std::vector<std::int64_t>& sizes) {
  sizes_[key] = {sizes, subtree};
  if (mine(subtree)) own_entries_[key] = torch::zeros(sizes, torch::kFloat32);
}

void MemoryBook::declare_by_subtree(const std::string& kind, const std::string& parameter,
                                    const std::vector<std::int64_t>& sizes) {
  for (int s = 0; s < subtrees_.existing(); ++s) declare(key_of(kind, s, parameter), s, sizes);
}

void MemoryBook::declare_shared(const std::string& kind, const std::string& parameter,
                                const std::vector<std::int64_t>& sizes) {
  declare(key_of(kind, -1, parameter), -1, sizes);
}

std::span<float> MemoryBook::of(const std::string& kind, int subtree, const std::string& parameter) {
  return elements(own_entries_.at(key_of(kind, subtree, parameter)));
}

std::span<float> MemoryBook::shared(const std::string& kind, const std::string& parameter) {
  return elements(own_entries_.at(key_of(kind, -1, parameter)));
}

MemoryBook::State MemoryBook::copy() const {
  State copy;
  for (const auto& [key, tensor] : own_entries_) copy[key] = tensor.clone();
  return copy;
}

void MemoryBook::restore(const State& copy) {
  for (const auto& [key, tensor] : own_entries_)
    std::ranges::copy(elements(copy.at(key)), elements(tensor).begin());
}

// Whoever has it, and of several the lowest rank, sends each subtree's. What nobody has whose own counts,
// since those who had it are gone, is left out.
MemoryBook::State MemoryBook::collect(const Group& group, Own own) const {
  std::map<int, State> by_subtree;
  for (const auto& [key, tensor] : own_entries_) by_subtree[sizes_.at(key).subtree][key] = tensor;
  std::vector<std::int64_t> have;
  for (const auto& [subtree, entries] : by_subtree)
    if (own == Own::counts) have.push_back(subtree);
  std::map<int, int> senders;
  const std::vector<std::vector<std::int64_t>> all = group.all_gather(have);
  for (int r = group.size() - 1; r >= 0; --r)
    for (const std::int64_t subtree : all[static_cast<std::size_t>(r)])
      senders[static_cast<int>(subtree)] = r;
  State state;
  for (const auto& [subtree, sender] : senders) {
    std::string bytes = sender == group.rank() ? bytes_of(by_subtree.at(subtree)) : "";
    group.broadcast(bytes, sender);
    add_from(bytes, state);
  }
  return state;
}

MemoryBook::State MemoryBook::inherit(MemoryBook before) {
  State rest;
  for (auto& [key, tensor] : before.own_entries_) {
    const auto own = own_entries_.find(key);
    if (own != own_entries_.end() && own->second.sizes() == tensor.sizes())
      own->second = tensor;
    else
      rest.emplace(key, tensor);
  }
  return rest;
}

bool MemoryBook::knows(const State& state) const {
  return std::ranges::all_of(state, [&](const auto& entry) {
    const auto known = sizes_.find(entry.first);
    return known != sizes_.end() && entry.second.sizes() == at::IntArrayRef(known->second.sizes);
  });
}

MemoryBook::State MemoryBook::without_subtrees(const State& state) const {
  State rest;
  for (const auto& [key, tensor] : state)
    if (const auto known = sizes_.find(key); known != sizes_.end() && known->second.subtree < 0)
      rest.emplace(key, tensor);
  return rest;
}

void MemoryBook::take(const State& state, Missing missing) {
  for (const auto& [key, tensor] : state) {
    const auto known = sizes_.find(key);
    if (known == sizes_.end())
      throw UsageError("the state of the exchange has '" + key + "', which this run's does not remember (" +
                       std::to_string(subtrees_.count) + " subtrees of " + std::to_string(subtrees_.lanes) +
                       " lanes)");
    if (tensor.sizes() != at::IntArrayRef(known->second.sizes))
      throw UsageError("the state of the exchange has '" + key + "' of " + c10::str(tensor.sizes()) +
                       "; accepted: " + c10::str(at::IntArrayRef(known->second.sizes)));
  }
  for (const auto& [key, kind] : sizes_)
    if (missing == Missing::is_refused && !state.contains(key))
      throw UsageError("the state of the exchange lacks '" + key + "' (" + std::to_string(subtrees_.count) +
                       " subtrees of " + std::to_string(subtrees_.lanes) + " lanes)");
  const torch::NoGradGuard no_grad;
  for (auto& [key, tensor] : own_entries_)
    if (const auto found = state.find(key); found != state.end()) tensor.copy_(found->second);
}

}  // namespace lockstep::compress
