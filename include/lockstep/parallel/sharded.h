// Data parallelism with the model's state in shards (ZeRO, FSDP): of what every worker of DataParallel holds
// whole, each keeps a share.
//
//   lockstep::Sharded sharded(model, world, lockstep::ShardStage::parameters);   // in place of DataParallel
//   lockstep::AdamW optimizer(sharded, {.lr = 5e-4});   // one of ours: torch::optim's would train nothing,
//                                                       // which the second exchange says
//   … lanes, no_sync(), clipping (lockstep::clip_grad_norm_) and step() as with DataParallel: the same bits
//
// What a worker of W holds, in shares of the whole:
//
// | stage | also known as | parameters | gradients | optimizer |
// |---|---|---|---|---|
// | `optimizer` | ZeRO-1 | 1 | 1 | 1/W |
// | `gradients` | ZeRO-2, SHARD_GRAD_OP | 1 | 1/W, and a few buckets | 1/W |
// | `parameters` | ZeRO-3, FULL_SHARD | 1 a machine, or 1/W and units | 1/W, and a few buckets | 1/W |
//
// Each bucket of gradients is reduced and scattered: of every bucket a worker gets the mean of its own part,
// and that is what its optimizer updates (slices()).
//
// `optimizer` and `gradients`: then the parts are gathered again. Parameters lie in comm memory in the order
// of the buckets, so that nothing is copied on the way; they stay there when this is gone.
//
// `gradients`: a bucket has memory from its first gradient to the end of its exchange, then the next one gets
// it. Where a worker has several lanes, or backwards under no_sync(), their sum waits whole for the last one,
// as at the stage before, and so do the buckets behind one that waits for a parameter that is not used.
//
// `parameters`: workers on one machine need not gather what they can all see. There is one copy of the
// parameters in memory that all of them have in common; each updates its own part of it, and step() ends when
// all have. So a step on one machine moves half of what DataParallel's moves; across machines the others'
// parts come once a machine. What one worker writes to a parameter is there for all of its machine: load
// weights before step() or after it, under whole(), on every worker (master weights take over what their own
// worker has written), and write nothing else. The module stays there when this is gone, to be read; the next
// strategy gives each worker its own. Where workers have no memory in common (tcp, mpi), or a budget is given
// (StrategyOptions::gathered_mb), parameters are gathered in the model's units (units.h) instead, and are
// empty when this is gone. On GPUs there is one copy for workers that are all on the same one over ipc (who
// read and write it behind barriers of their streams, and whose processes live as long as one reads it);
// workers on several gather, and one worker alone has them all.
//
// A model that no worker has the memory for is built under a ShardedConstruction (construction.h).
//
// grad() is undefined after the exchange, since most of it would not be the mean: what reads gradients reads
// slices(). So nothing is left to add to: step() forgets gradients as zero_grad() does, and a second backward
// in a step is an error where the first one was exchanged; all but the last are under no_sync().
//
// A module's parameters may not be given other memory (set_data, to(dtype)) while this lives. Weights are
// tied by being one tensor under two names; two tensors on the same memory are refused. Frozen parameters and
// buffers are whole on every worker.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/replicated.h"

namespace lockstep {

// What is in shards; each stage has what those before it have. The numbers are ZeRO's.
enum class ShardStage : unsigned char { optimizer = 1, gradients = 2, parameters = 3 };

class BucketSlots;
class OneCopy;
class ParameterUnits;
struct ShardHome;

class Sharded final : public Replicated {
 public:
  // Collective; throws as DataParallel's. An exchange of the options may leave everything, or the own part.
  Sharded(const ModuleRef& module, const Group& group, ShardStage stage, const StrategyOptions& options = {});
  ~Sharded() override;

  // What this worker has of its part of the buckets.
  std::span<const Slice> slices() override;
  SliceStore* store() override;
  void begin_updates() override;
  void share_updates() override;
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override;
  torch::Tensor cut(std::size_t i, const torch::Tensor& whole) const override;
  void add_parts(std::span<double> values) override;
  std::size_t parameter_bytes() const override;

 private:
  Sharded(const ModuleRef& module, const Group& group, ShardStage stage, const StrategyOptions& options,
          ShardHome home);
  struct Shard {
    Bucket bucket;      // of gradients
    DType dtype;        // of parameters
    CommMemory memory;  // of parameters, laid out alike; of units this worker's parts
    bool in_unit = false;
  };
  void set_whole(bool on) override;
  void bring(const torch::Tensor& parameter) override;
  void end_whole() const;
  void refuse_shared_memory() const;
  void move_in();
  void place(const Shard& shard);
  void check_in_place() const;
  void gather_updates();
  Work bring_from_others(const Shard& shard);
  Work gather(const Shard& shard, std::byte* memory, DType dtype) const;

  std::unique_ptr<OneCopy> copy_;          // of the parameters, for all workers of a machine; or none
  std::shared_ptr<ParameterUnits> units_;  // of parameters that are gathered when they are needed; or none
  std::unique_ptr<BucketSlots> arriving_;  // for parts from other machines
  std::vector<NamedTensor> parameters_;
  std::vector<Shard> shards_;             // one a bucket
  std::vector<Slice> slices_;             // one a parameter
  std::vector<torch::Tensor> gradients_;  // of the slices, when they have any
};

}  // namespace lockstep
