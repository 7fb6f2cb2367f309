// Parameters of which each worker holds a share, in units that are gathered when they are needed.
//
// Workers stand in sets of S in a row: a set holds every parameter once, and there are K = W / S sets (one,
// unless shards are kept inside of nodes). A bucket has W equal parts, one a worker: what its optimizer
// updates. Worker j of set k holds S-th parts: those of the workers j of all sets, K of them, so that a set
// has everything between its workers, and what it needs of other sets' updates comes to it once a step.
//
//   W = 4, S = 2      part   0      1      2      3
//   updated by               0      1      2      3
//   held by                  0, 2   1, 3   0, 2   1, 3
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/exchange.h"
#include "lockstep/grad/gradient_source.h"
#include "parallel/comm_row.h"
#include "parallel/gather_line.h"
#include "parallel/shard_store.h"
#include "parallel/unit_layout.h"
#include "parallel/unit_schedule.h"

namespace lockstep {

class ParameterUnits {
 public:
  // `sharers`: S, of which the group's size is a multiple. `device`: where all parameters are. `offload`:
  // where parts lie that are on disk (of the processor's alone). Collective.
  ParameterUnits(Group group, int sharers, std::size_t budget_bytes, Device device = {},
                 Offload offload = {});
  ~ParameterUnits();
  ParameterUnits(const ParameterUnits&) = delete;
  ParameterUnits& operator=(const ParameterUnits&) = delete;

  // Which parameters are gathered together: ReducerOptions::units. Throws UsageError where the model has no
  // units.
  const std::vector<int>& lay_out(const torch::nn::Module& module,
                                  const std::vector<NamedTensor>& parameters);
  // Is that bucket one of a unit?
  bool has(const Bucket& bucket) const { return layout_.kinds[bucket.tensors.front().parameter] != 0; }

  // All buckets that will move in, and types of their parameters: makes the file where parts are on disk.
  // Throws OffloadError, on all workers where it does on one. Collective.
  void make_room(std::span<const Bucket> buckets, const std::vector<NamedTensor>& parameters);
  // Room for the parts of these. Before the first add().
  void reserve(std::span<const Bucket> buckets, const std::vector<NamedTensor>& parameters);
  // A bucket of units moves in: this worker keeps its parts, and its parameters have memory only while they
  // are gathered. Returns where those parts lie.
  CommMemory add(const Bucket& bucket, DType dtype, const std::vector<NamedTensor>& parameters);
  // The part that this worker updates; null: on disk.
  std::byte* own_part(const Bucket& bucket) const;
  // Slice i lies in that part, from this byte on.
  void add_slice(std::size_t i, const Slice& slice, const Bucket& bucket, std::size_t offset);
  // Of parts that are on disk; else null.
  ShardStore* store() const { return store_.get(); }
  // All are there.
  void start();

  // Throws UsageError where a parameter was given other memory.
  void check_in_place() const;
  // Brings what other sets' workers have updated. Collective.
  void share_updates() const;

  void set_whole(bool on);
  // Strategy::bring.
  void bring(const torch::Tensor& parameter);
  void passes_over() { schedule_->passes_over(); }
  void wait_over() { schedule_->wait_over(); }

  // Parameters that have no memory of their own.
  bool holds(const torch::Tensor& parameter) const;
  std::size_t shard_bytes() const;  // this worker's parts
  std::size_t whole_bytes() const;  // of the parameters of all units
  std::size_t peak_bytes() const { return schedule_ ? schedule_->peak_bytes() : 0; }
  std::size_t budget_bytes() const { return schedule_ ? schedule_->budget() : 0; }

 private:
  struct Held {
    int bucket = 0;  // of gradients
    std::vector<int> units = {};
    CommMemory memory = {};  // K parts
    std::size_t part_bytes = 0;
    std::vector<NamedTensor> parameters = {};
    std::vector<std::size_t> offsets = {};  // of those, bytes
    std::vector<c10::Storage> storages = {};
    std::byte* gathered = nullptr;
    void fill(std::byte* with);  // null: with nothing
  };
  std::size_t first_of(std::size_t k, std::size_t part) const;  // of set k's worker of this place
  int place_of(const Bucket& bucket) const;                     // in held_
  void share_stored_updates() const;
  void take_written();
  std::size_t part_bytes(const Bucket& bucket, const std::vector<NamedTensor>& parameters) const;
  using AllHeld = std::vector<std::unique_ptr<Held>>;
  AllHeld::const_iterator holder_of(const torch::Tensor& parameter) const;  // end: none
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  void copy_common(const torch::Tensor& tensor, std::size_t offset, std::size_t first, std::size_t count,
                   std::byte* to) const;

  Group group_;
  int sharers_;
  int sets_;
  Group across_;  // those of other sets who hold the same
  std::size_t budget_bytes_;
  Device device_;
  Offload offload_;
  std::unique_ptr<ShardStore> store_;
  CommRow row_;  // of all parts
  std::shared_ptr<GatherLine> line_;
  UnitLayout layout_;
  AllHeld held_;
  std::shared_ptr<UnitSchedule> schedule_;
};

}  // namespace lockstep
