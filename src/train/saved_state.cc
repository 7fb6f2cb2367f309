#include "train/saved_state.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "checkpoint/torch_types.h"

namespace lockstep {
namespace {

RunForm form_of(const std::string& name, FileDType dtype, const std::vector<std::int64_t>& whole,
                const ElementRange& elements) {
  return {.name = name, .dtype = dtype, .shape = whole, .begin = elements.begin, .end = elements.end};
}

// Of a slice that is on disk, whose tensor has no memory.
torch::Tensor fetched(const SliceStore& store, std::size_t slice, const torch::Tensor& like) {
  torch::Tensor tensor = torch::empty(like.sizes(), like.options());
  auto* to = static_cast<std::byte*>(tensor.data_ptr());
  store.read(slice, [&](std::span<const std::byte> bytes) {
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  });
  return tensor;
}

}  // namespace

SliceOwners::SliceOwners(Strategy& strategy) {
  const Group& world = strategy.group();
  std::vector<std::int64_t> mine;
  for (const Slice& slice : strategy.slices()) {
    slices_.push_back(slice);
    slices_.back().gradient = torch::Tensor();
    mine.push_back(static_cast<std::int64_t>(slice.elements.begin));
    mine.push_back(static_cast<std::int64_t>(slice.elements.end));
  }
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(world.size()));
  if (!mine.empty()) world.all_gather(mine, all);
  ranges_.resize(static_cast<std::size_t>(world.size()));
  for (std::size_t r = 0; r < ranges_.size(); ++r)
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const std::size_t at = r * mine.size() + 2 * i;
      const ElementRange range{static_cast<std::size_t>(all[at]), static_cast<std::size_t>(all[at + 1])};
      std::int64_t elements = 1;
      for (const std::int64_t size : slices_[i].whole) elements *= size;
      whole_everywhere_ = whole_everywhere_ && range == ElementRange{0, static_cast<std::size_t>(elements)};
      ranges_[r].push_back(range);
    }
}

int SliceOwners::saver(int rank, std::size_t slice, const std::vector<std::uint8_t>& sees) const {
  int first = -1;
  for (int other = 0; other < static_cast<int>(ranges_.size()); ++other) {
    if (of(other, slice) != of(rank, slice)) continue;
    if (sees[static_cast<std::size_t>(other)] != 0) return other;
    if (first < 0) first = other;
  }
  return first;
}

void add_run(SavedState::Set& set, const SliceOwners& owners, const std::string& name, std::size_t slice,
             const torch::Tensor& part) {
  const Slice& of = owners.slices()[slice];
  set.runs.push_back({.form = form_of(name, to_file(part, name), of.whole, of.elements),
                      .tensor = part.detach(),
                      .slice = static_cast<int>(slice)});
}

void add_stored_run(SavedState::Set& set, const SliceOwners& owners, const std::string& name,
                    std::size_t slice, torch::ScalarType dtype, StateStream stream) {
  const Slice& of = owners.slices()[slice];
  const FileDType stored = to_file(torch::empty({0}, dtype), name);
  set.runs.push_back({.form = form_of(name, stored, of.whole, of.elements),
                      .tensor = {},
                      .stream = std::move(stream),
                      .slice = static_cast<int>(slice)});
}

void add_joined(SavedState::Set& set, GradientSource& source, int rank,
                const std::vector<torch::Tensor>& parts, const std::vector<std::string>& names) {
  if (std::ranges::none_of(parts, [](const torch::Tensor& part) { return part.defined(); })) return;
  source.join(parts,
              [&](std::size_t i, const torch::Tensor& whole) { add_whole(set, rank, names[i], whole); });
}

void add_whole(SavedState::Set& set, int rank, const std::string& name, const torch::Tensor& tensor) {
  // On every rank: what a file can't hold is refused by all of them, not by the one that the others wait for.
  RunForm form = form_of(name, to_file(tensor, name), tensor.sizes().vec(),
                         {0, static_cast<std::size_t>(tensor.numel())});
  if (rank != 0) return;
  set.runs.push_back({.form = std::move(form),
                      .tensor = tensor.detach().clone(torch::MemoryFormat::Contiguous).cpu(),
                      .own_copy = true});
}

SavedState::Set model_runs(Strategy& strategy, const SliceOwners& owners, Metadata metadata) {
  const torch::NoGradGuard no_grad;
  const torch::nn::Module& module = strategy.module();
  const int rank = strategy.group().rank();
  const std::vector<NamedTensor> trained = strategy.parameters();
  std::unordered_map<const void*, std::size_t> index;
  for (std::size_t i = 0; i < trained.size(); ++i) index.emplace(trained[i].tensor.unsafeGetTensorImpl(), i);
  SavedState::Set set{.metadata = std::move(metadata)};
  const SliceStore* const store = strategy.store();
  for (const auto& entry : module.named_parameters()) {
    const auto found = index.find(entry.value().unsafeGetTensorImpl());
    if (found == index.end()) {
      add_whole(set, rank, entry.key(), entry.value());
    } else if (const Slice& slice = owners.slices()[found->second];
               trained[found->second].tensor.is_contiguous()) {
      if (store != nullptr && store->has(found->second))
        add_stored_run(set, owners, entry.key(), found->second, slice.parameter.scalar_type(),
                       [store, i = found->second](const auto& take) { store->read(i, take); });
      else
        add_run(set, owners, entry.key(), found->second, slice.parameter);
    } else {
      std::vector<torch::Tensor> parts(trained.size());
      parts[found->second] = store != nullptr && store->has(found->second)
                                 ? fetched(*store, found->second, slice.parameter)
                                 : slice.parameter.detach();
      std::vector<std::string> names(trained.size());
      names[found->second] = entry.key();
      add_joined(set, strategy, rank, parts, names);
    }
  }
  for (const auto& entry : module.named_buffers()) add_whole(set, rank, entry.key(), entry.value());
  return set;
}

}  // namespace lockstep
