// Where gradients are kept until they are exchanged: one set of buckets in comm memory, and as many spare
// sets as adding up the lanes of this worker along the canonical tree takes.
//
// Where each worker keeps only its own part of what was reduced (`reuse`), the first set's buckets are there
// only while they are filled and exchanged, and the own parts are kept beside them. A worker with one lane
// then has a few buckets' memory; with several lanes the sums wait whole for the last one.
//
// A single worker on a device, whose exchange changes nothing, has no buckets at all as long as it runs one
// lane a step, or none: its gradients are means where they are.
//
// Lanes are added up in pairs in place, and pairs of pairs like the digits of a binary counter: sets_[0]
// holds the largest finished part, the last set the pair under way. Eight lanes need three sets.
//
// Where an exchange has cut the lanes' tree each subtree is such a counter, behind those before it, which
// have become one set each: eight lanes in four subtrees need four sets.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "grad/bucket_layout.h"
#include "grad/bucket_slots.h"
#include "grad/lane_squares.h"
#include "grad/torch_types.h"
#include "lockstep/comm/group.h"
#include "lockstep/grad/exchange.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// 16 bits don't hold many times a gradient, and weights are numbers of lanes, samples or tokens: there the
// weights, and the divisor with them, are scaled by the power of two that brings their total to one at most.
double weight_scale(DType dtype, double total_weight);

class GradientStore {
 public:
  // Buckets lie on the parameters' device, which is the same for all: UsageError names two that differ.
  // `reuse`: buckets give their memory up behind their exchange, as said above; a bucket's first gradient
  // waits while so many exchanges are under way. `nothing_alone`: Exchange's.
  GradientStore(const std::vector<NamedTensor>& parameters, Group group,
                std::optional<std::size_t> reuse = {}, bool nothing_alone = false);

  // Lays the buckets out anew; gradients that are views into the old ones move along.
  void set_layout(BucketLayout layout);
  const BucketLayout& layout() const { return layout_; }
  torch::Device device() const { return torch_device(device_); }
  // "bucket 2 of 3 (layer1.weight … layer3.bias)": for messages.
  const std::string& label(int bucket) const { return labels_[static_cast<std::size_t>(bucket)]; }

  // Throws UsageError naming a parameter whose gradient can't travel, and drops it: the end of its lane must
  // not come across it.
  void check(std::size_t parameter) const;

  // Lanes of a subtree, a power of two, and which this worker's first one is. Else there is one for all
  // lanes.
  void cut(int lanes, int first_subtree) {
    subtree_lanes_ = lanes;
    first_subtree_ = first_subtree;
  }

  // The gradients that are there now are of before.
  void know_gradients();
  // Throws UsageError naming a parameter whose grad() is neither what an exchange left there nor one that is
  // known, nor zero: no backward brought it, so it would be lost. (Where gradients stay where they are nobody
  // can tell.)
  void refuse_foreign() const;

  // Plain loops: grad() becomes a view into its bucket, its value kept.
  void adopt(std::size_t parameter);

  // Lanes: forgets everything (position 0), or makes room for lane `position` of a step whose weights add up
  // to `total_weight`. Gradients become undefined. `alone`: it is the step's only lane, of all workers'.
  void begin_lane(int position, double total_weight, bool alone = false);
  // Adds weight × grad() to what the lanes before gave. grad() becomes undefined.
  void fold(std::size_t parameter, double weight);
  // From now on |grad()|² of each lane is kept.
  void measure_lanes() { squares_.emplace(parameters_.size()); }
  // Of the step's lanes so far; none where nobody asked for them.
  std::vector<double> lane_squares() const { return squares_ ? squares_->lanes() : std::vector<double>(); }

  // Bucket b of the first set becomes the sum of all sets (of the first subtree), and zero (negative zero,
  // which changes nothing when added) where there is no gradient. Afterwards the bucket is ready to leave.
  void collapse(int bucket, bool lanes);
  // Has this worker a gradient for it? After collapse.
  bool has(std::size_t parameter) const;

  // grad() becomes the view into the exchanged bucket, or undefined.
  void publish(std::size_t parameter, bool there);

  // Without a divisor; without data where it has no memory at the moment.
  Bucket bucket(int index) const;
  // Where this rank's part of a bucket is kept apart from it; without data: nowhere.
  Buffer own_place(int bucket) const;
  // This rank's part of what was reduced, tensor by tensor, wherever it lies.
  std::vector<Buffer> reduced(const Bucket& bucket) const;
  // After collapse, where the tree is cut: Bucket::sums.
  std::vector<SubtreeSum> sums(int bucket) const;
  // Its exchange is under way, and leaves this rank its part there (own_result). Returns what is to be waited
  // for in its place.
  Work leave(const Bucket& bucket, Work exchange);
  // This rank's part of the bucket as the exchange has left it, flat.
  torch::Tensor own_part(int bucket) const;
  // Of all sets, and of own parts that are kept apart.
  std::size_t bytes() const;

 private:
  struct Set {
    std::vector<torch::Tensor> buckets;  // flat
    std::vector<torch::Tensor> views;    // one a parameter, shaped and strided like it
    std::vector<char> filled;            // holds a value of this step
  };
  // In `memory`, or in memory of libtorch's own where that is none.
  Set make_set(const BucketLayout& layout, const CommMemory& memory) const;
  Set empty_set(const BucketLayout& layout) const;
  torch::Tensor view_of(const torch::Tensor& bucket, std::size_t parameter, const BucketLayout& layout) const;
  void make_own(const BucketLayout& layout);
  // Bucket b of the first set has memory from now on, if it had none.
  void place(int bucket);
  // Whether this step's gradients are left where they are.
  bool stay() const { return stays_ && !adds_up_; }
  void merge(std::size_t into, std::size_t from, const std::vector<int>& members);

  const std::vector<NamedTensor>& parameters_;
  std::vector<std::string> names_;  // of the parameters
  std::vector<const void*> found_;  // gradients that are known: their TensorImpls
  Group group_;
  Device device_;  // of the parameters
  BucketLayout layout_;
  int layouts_ = 0;                  // so far
  std::vector<std::string> labels_;  // of the buckets
  std::vector<std::vector<BucketTensor>> tensors_;
  bool stays_ = false;     // gradients may be left where they are
  bool adds_up_ = false;   // not those of this step, which are sums of weighted lanes
  CommMemory memory_;      // of the first set; none with slots, and none before it is needed
  BucketOffsets offsets_;  // of the buckets in memory_
  std::optional<BucketSlots> slots_;
  std::vector<CommMemory> placed_;        // with slots: the memory that each bucket has now
  CommMemory own_memory_;                 // with slots: of own_
  std::vector<torch::Tensor> own_;        // with slots: this rank's part of each bucket
  std::vector<Set> sets_;                 // the first in comm memory
  std::vector<std::size_t> roots_ = {0};  // the first set of each subtree so far
  std::size_t top_ = 0;                   // the set that lanes are added to
  int subtree_lanes_ = 0;                 // 0: not cut
  int first_subtree_ = 0;
  double total_weight_ = 1;  // of the step's lanes
  std::optional<LaneSquares> squares_;
};

}  // namespace lockstep
