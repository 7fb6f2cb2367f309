// Data parallelism: every worker holds the whole model, each sees other samples, and their gradients are
// averaged while backward still runs.
//
//   lockstep::DataParallel ddp(model, world);              // parameters and buffers become rank 0's
//                                                          // (of a shared_ptr, a holder, or on the stack)
//   lockstep::AdamW optimizer(ddp, {.lr = 5e-4});
//
// A plain loop, as in PyTorch:
//   optimizer.zero_grad();
//   loss(model->forward(x), y).backward();                 // buckets leave while this runs
//   optimizer.step();                                      // any torch::optim optimizer works too
//
// Accumulation:
//   { auto guard = ddp.no_sync(); loss(…).backward(); }    // gradients stay here and add up
//   loss(…).backward();                                    // now they are averaged over the workers
// (A step whose backwards are all under no_sync() is exchanged by step() of an optimizer made of the
// strategy, by synchronize() and by clip_grad_norm_; where none of them is called it is each worker's own,
// and nothing is compared.)
//
// Lanes (comm/lanes.h): the result has the same bits for every number of workers.
//   for (auto& lane : step) {
//     auto scope = ddp.lane(lane);                         // random stream, buffers; the last lane reduces
//     loss(model->forward(lane.data), lane.target).backward();   // once in a scope; more often where all but
//   }                                                            // the last are under no_sync()
//   optimizer.step();
// Forward and backward lie in the scope: before it, dropout draws from another stream on each worker.
//
// Gradients are means over workers (over lanes, weighted, where lanes are used). A parameter without gradient
// on some workers counts as zero there; without gradient on all, its grad() stays undefined and optimizers
// leave it alone. They are there when the loop over a loader's lanes ends, on a worker that has none in this
// step too: clipping (lockstep::clip_grad_norm_, or torch's) comes between the lanes and step().
//
// Floating-point buffers such as batch norm's are means over those lanes or workers that ran a backward,
// weighted alike. A step in which nobody does (every loss was skipped) changes nothing: parameters and batch
// norm's buffers are as the step found them. (In a plain loop those that the model writes to by operations of
// its own stay as each worker's forward left them, until the next exchange.)
//
// A worker may skip its backward if it calls all else that the others call. With lanes that is nothing
// special: inside the lane's scope, or by passing over the lane before it (where a rank may pass over all of
// its lanes, all call synchronize() before torch's clipping and before step() of torch::optim, and end_step()
// after that one).
// In a plain loop it is step() of one of our optimizers that is made of the strategy, and
// lockstep::clip_grad_norm_ for clipping; with torch::optim, which knows nothing of other ranks, every rank
// calls synchronize() before and end_step() after the optimizer's step(). Who gives an update up whose
// gradients are there calls zero_grad() of our optimizer, or end_step(), in its place.
//
// Ranks that are not in the same step, that call backward in a loop over lanes outside of lane(), that step
// between their lanes, that unfreeze parameters after wrapping, or that give the model another type or device
// get an error that says so. (Under no_sync() nobody looks whether a backward in a loop over lanes is in
// one.)
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/replicated.h"

namespace lockstep {

class WholeSlices;
using DataParallelOptions = StrategyOptions;

class DataParallel final : public Replicated {
 public:
  // Collective. The module by shared_ptr, by its holder, or by reference (module_ref.h). Throws MismatchError
  // naming the first parameter or buffer whose name, shape or dtype differs between two ranks, with both
  // sides.
  DataParallel(const ModuleRef& module, Group group, const DataParallelOptions& options = {});
  ~DataParallel() override;

  // Whole parameters, and grad().
  std::span<const Slice> slices() override;
  void begin_updates() override {}
  void share_updates() override {}
  void end_step() override;
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override;
  torch::Tensor cut(std::size_t i, const torch::Tensor& whole) const override;
  void add_parts(std::span<double>) override {}

  // The run goes on with other members: parameters and buffers become those of the new group's rank 0, and an
  // unfinished step is forgotten. Collective there; the old group may have failed. Optimizers stay as they
  // are: of who joins, its state is to be loaded.
  void rebind(Group group);

 private:
  std::unique_ptr<WholeSlices> slices_;
};

}  // namespace lockstep
