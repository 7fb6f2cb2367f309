// What a checkpoint of a run holds, as one worker has it: runs of tensors' elements, and small files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/part_file.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/group.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep {

// Which elements of each parameter every worker has: the same for the whole run.
class SliceOwners {
 public:
  // Collective.
  explicit SliceOwners(Strategy& strategy);

  // Every worker has all of every parameter.
  bool whole_everywhere() const { return whole_everywhere_; }
  const ElementRange& of(int rank, std::size_t slice) const {
    return ranges_[static_cast<std::size_t>(rank)][slice];
  }
  // Who saves what `rank` has of a slice: the first of those that have the same and see the folder; where
  // none of them does the first of them, by way of rank 0.
  int saver(int rank, std::size_t slice, const std::vector<std::uint8_t>& sees) const;
  // By name, without gradients.
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  std::vector<Slice> slices_;
  std::vector<std::vector<ElementRange>> ranges_;  // by rank
  bool whole_everywhere_ = true;
};

// Hands bytes on in their order.
using StateStream = std::function<void(const std::function<void(std::span<const std::byte>)>& take)>;

struct SavedRun {
  static constexpr int kLeaders = -1;  // rank 0's, whoever else has it

  RunForm form;
  torch::Tensor tensor;  // those elements; the run goes on and changes them, but for what is a copy
  // In place of the tensor, of what is on disk: its bytes, a piece at a time, on any thread. Until the next
  // update, too.
  StateStream stream = {};
  int slice = kLeaders;   // whose they are
  bool own_copy = false;  // nobody else changes it
};

struct SavedState {
  // What one safetensors file would hold.
  struct Set {
    Metadata metadata = {};
    std::vector<SavedRun> runs = {};  // those of slices in one order on every worker
  };
  std::map<std::string, Set> sets = {};
  // Of rank 0: a file's name, and what writes it, from copies.
  using FileWriter = std::function<void(const std::filesystem::path& file)>;
  std::vector<std::pair<std::string, FileWriter>> files = {};
};

// Parameters and buffers. Collective where the strategy has parts of a parameter that is not contiguous.
SavedState::Set model_runs(Strategy& strategy, const SliceOwners& owners, Metadata metadata);

// Adds what a worker has of a tensor that is cut as slice `slice` is. `plain`: its elements are those of a
// contiguous tensor; of others use add_joined.
void add_run(SavedState::Set& set, const SliceOwners& owners, const std::string& name, std::size_t slice,
             const torch::Tensor& part);
// The same of elements that are on disk.
void add_stored_run(SavedState::Set& set, const SliceOwners& owners, const std::string& name,
                    std::size_t slice, torch::ScalarType dtype, StateStream stream);
// Those whose elements are in another order, put together on rank 0: parts[i] is of slice i, or undefined.
// Collective.
void add_joined(SavedState::Set& set, GradientSource& source, int rank,
                const std::vector<torch::Tensor>& parts, const std::vector<std::string>& names);
// What is rank 0's to save: of any layout.
void add_whole(SavedState::Set& set, int rank, const std::string& name, const torch::Tensor& tensor);

}  // namespace lockstep
