// Batch norm over the samples of all workers at once: as if one process normalised the whole batch.
//
//   struct Net : torch::nn::Module {
//     Net() { norm = register_module("norm", lockstep::SyncBatchNorm(64)); }   // in place of BatchNorm2d(64)
//     lockstep::SyncBatchNorm norm{nullptr};
//   };
//   lockstep::convert_sync_batchnorm(net);      // or so: BatchNorm1d, 2d and 3d inside its Sequentials
//   lockstep::DataParallel ddp(net, world);     // last: a strategy gives the norms of its model their group
//
// Options, parameters and buffers are BatchNorm's, and so are their names: weights travel both ways.
//
// In training the means and variances are over what all workers give it, each by how much that is: batches
// may be of unequal size, and empty ([0, 64, …]). So are the gradients. In evaluation, and in a group of one,
// it is libtorch's own batch norm, bit for bit. 16-bit inputs are normalised in f32.
//
// Every worker runs forward, and backward through its result, as often as the others, also one with an empty
// batch (its loss is the sum of what came out, which is 0) or in a lane of weight 0. Where one does not, the
// others wait, and when the time of the call is over an error names it. Gradients are of first order only.
//
// Lanes (comm/lanes.h). A worker runs its lanes one after the other, so "one lane of each worker" is another
// set of samples for every number of workers, and the run would be another one. So a strategy refuses, on
// every worker, to train a model with this norm in a loop over lanes unless each worker has exactly one: a
// loader's default, with {.lane_batch = batch / world.size()} for the same batch on other numbers of workers
// (the same numbers to rounding, not bit for bit). A lane counts in the gradients as much as its weight says;
// one of weight 0 counts in the statistics neither. In a plain loop the workers' losses weigh alike, however
// many samples each has, as in DataParallel.
//
// What travels is host memory, a few numbers a channel; on a device the host waits for them.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <string>

#include "lockstep/comm/group.h"
#include "lockstep/parallel/module_ref.h"

namespace lockstep {

struct BatchNormTensors {
  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

class SyncBatchNormImpl final : public torch::nn::Cloneable<SyncBatchNormImpl>, public BatchNormTensors {
 public:
  // `group`: where statistics meet, called from forward and from backward, so nobody else calls on it
  // meanwhile: world.split(0), one for all norms of a model. Empty: the strategy's.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Group group = {});
  // With the tensors of another norm, not with copies.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const BatchNormTensors& tensors);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // [batch, num_features, …], of two to five dimensions. In training a collective.
  torch::Tensor forward(const torch::Tensor& input);

  // By who knows the group and what the model calls this norm.
  void join(Group group, std::string name);
  const Group& group() const { return group_; }
  // How much this worker counts against the others from now on: a lane's weight.
  void weigh(double lane_weight) { lane_weight_ = lane_weight; }

  torch::nn::BatchNormOptions options;

 private:
  void register_tensors();
  void check(const torch::Tensor& input) const;
  double begin_batch();  // counts it; gives the momentum
  torch::Tensor normalise_together(const torch::Tensor& input);

  Group group_;
  std::string name_ = "SyncBatchNorm";  // in messages
  double lane_weight_ = 1;
};
TORCH_MODULE(SyncBatchNorm);

// Every BatchNorm1d, 2d and 3d that a torch::nn::Sequential of `model` holds becomes a SyncBatchNorm with the
// same tensors, under the same name. Gives their number. `group`, where it is given: theirs is a part of it,
// and the call is collective; else that of a strategy which is made afterwards.
//
// A BatchNorm that a module holds as a member of its own can't be replaced from outside, since the member
// would go on as it is. Throws UsageError that names it, before anything is changed; write SyncBatchNorm
// there. Likewise one that somebody holds beside its Sequential.
int convert_sync_batchnorm(const ModuleRef& model, const Group& group = {});

}  // namespace lockstep
