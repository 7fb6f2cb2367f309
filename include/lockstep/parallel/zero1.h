// Data parallelism with the optimizer's state in shards (stage 1 of ZeRO): every worker holds the whole model
// and all its gradients, and of Adam's two numbers a parameter only its own share.
//
//   lockstep::Zero1 zero1(model, world);                   // as DataParallel
//   lockstep::AdamW optimizer(zero1, {.lr = 5e-4});        // one of ours: torch::optim's would train nothing,
//                                                          // which the second exchange says
//   … lanes, no_sync(), clipping (lockstep::clip_grad_norm_) and step() as with DataParallel: the same bits
//
// Each bucket of gradients is reduced and scattered: of every bucket a worker gets the mean of its own part,
// and that is what its optimizer updates (slices()). Then the parts are gathered again. Parameters lie in
// comm memory in the order of the buckets, so that nothing is copied on the way; they stay there when this is
// gone.
//
// grad() is undefined after the exchange, since most of it would not be the mean: what reads gradients reads
// slices(). So nothing is left to add to: step() forgets gradients as zero_grad() does, and a second backward
// in a step is an error where the first one was exchanged; all but the last are under no_sync().
//
// A module's parameters may not be given other memory (set_data, to(dtype)) while this lives. Weights are
// tied by being one tensor under two names; two tensors on the same memory are refused.
#pragma once

#include <vector>

#include "lockstep/parallel/replicated.h"

namespace lockstep {

class Zero1 final : public Replicated {
 public:
  // Collective; throws as DataParallel's. An exchange of the options may leave everything, or the own part.
  Zero1(const ModuleRef& module, Group group, const StrategyOptions& options = {});

  // What this worker has of its part of the buckets.
  std::span<const Slice> slices() override;
  void share_updates() override;
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override;
  torch::Tensor cut(std::size_t i, const torch::Tensor& whole) const override;
  void add_parts(std::span<double> values) override;

 private:
  struct Shard {
    Bucket bucket;      // of gradients
    DType dtype;        // of parameters
    CommMemory memory;  // of parameters, laid out alike
  };
  void refuse_shared_memory() const;
  void move_in();
  void check_in_place() const;
  Work gather(const Shard& shard, std::byte* memory, DType dtype) const;

  std::vector<NamedTensor> parameters_;
  std::vector<Shard> shards_;             // one a bucket
  std::vector<Slice> slices_;             // one a parameter
  std::vector<torch::Tensor> gradients_;  // of the slices, when they have any
};

}  // namespace lockstep
