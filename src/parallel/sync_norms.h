// The SyncBatchNorms of a strategy's model: whom they meet, what a lane counts, and in which loops over lanes
// they can be trained (parallel/sync_batch_norm.h says why).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/lane_board.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {

class SyncNorms {
 public:
  // Those of the model that have no group, or have that of `before`, are to get a part of `group`: what they
  // say in the middle of backward must not come between the buckets. Collective where there are any.
  SyncNorms(const std::shared_ptr<torch::nn::Module>& model, const Group& group, const SyncNorms* before);
  // Those that still have it are without a group again, for the model's next strategy.
  ~SyncNorms();
  SyncNorms(const SyncNorms&) = delete;
  SyncNorms& operator=(const SyncNorms&) = delete;
  // Now they get it.
  void join();

  bool empty() const { return all_.empty(); }
  // Throws UsageError where some worker has not exactly one lane in it, and they are in training.
  void check(const LaneLoop& loop) const;
  // Likewise for this worker, which may have no loader.
  void check(const LaneInfo& lane) const;
  void weigh(double weight) const noexcept;

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<SyncBatchNormImpl> norm;
  };
  bool in_training() const;

  std::vector<Entry> all_;
  std::vector<Entry> own_;  // that have their group from here
  Group part_;
};

// Whether a run of so many lanes on so many workers could train the model. Throws UsageError that names both.
void check_sync_norms(torch::nn::Module& model, int lanes, int workers);
bool has_sync_norms(torch::nn::Module& model);

}  // namespace lockstep
