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
//
// Lanes (comm/lanes.h): the result has the same bits for every number of workers.
//   for (auto& lane : step) {
//     auto scope = ddp.lane(lane);                         // random stream, buffers; the last lane reduces
//     loss(model->forward(lane.data), lane.target).backward();   // once in a scope; more often where all but
//   }                                                            // the last are under no_sync()
//   optimizer.step();
//
// Gradients are means over workers (over lanes, weighted, where lanes are used). A parameter without gradient
// on some workers counts as zero there; without gradient on all, its grad() stays undefined and optimizers
// leave it alone. They are there when the loop over a loader's lanes ends, on a worker that has none in this
// step too: clipping (lockstep::clip_grad_norm_, or torch's) comes between the lanes and step().
//
// Floating-point buffers such as batch norm's are means over those lanes or workers that ran a backward,
// weighted alike. A step in which nobody does (every loss was skipped) changes nothing: with lanes parameters
// and buffers are as the step found them; in a plain loop each worker's buffers stay as its own forward left
// them, until the next exchange.
//
// A worker may skip its backward if it calls all else that the others call. With lanes that is nothing
// special. In a plain loop it is step() of one of our optimizers, and lockstep::clip_grad_norm_ for clipping;
// with torch::optim, which knows nothing of other ranks, every rank calls synchronize() before and end_step()
// after the optimizer's step().
//
// Ranks that are not in the same step, that use the model in a loop over lanes outside of lane(), or that
// unfreeze parameters after wrapping get an error that says so.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/grad/gradient_source.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {

struct DataParallelOptions {
  // 0: chosen. 25 in the shared memory of one machine; between machines the smallest size that the links
  // carry about as fast. The bits are the same for every size.
  double bucket_cap_mb = 0;
  double first_bucket_mb = 1;  // small, so that communication starts early
  // false: a parameter that gets no gradient on some worker is an error that names it.
  bool find_unused_parameters = true;
  // In every so many exchanges the replicas' bits are compared, whoever updates them, and in the 2nd, 4th,
  // 8th … before that; a difference is an Error that names the parameter. 0: never.
  std::int64_t check_replicas_every = 500;
  std::string algorithm = {};  // of the all-reduce; empty: the cost table chooses
  Order order = Order::canonical;
  BucketHook hook = {};  // in place of the all-reduce
};

class DataParallel final : public GradientSource {
 public:
  // Collective. Throws MismatchError naming the first parameter or buffer whose name, shape or dtype differs
  // between two ranks, with both sides.
  //
  // The module by shared_ptr or by its holder (torch::nn::Sequential, a TORCH_MODULE type): it lives as long
  // as this does.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Group group, DataParallelOptions options = {});
  template <class M>
  DataParallel(const torch::nn::ModuleHolder<M>& holder, Group group, DataParallelOptions options = {})
      : DataParallel(holder.is_empty() ? nullptr : std::shared_ptr<torch::nn::Module>(holder.ptr()),
                     std::move(group), std::move(options)) {}
  // By reference: a model on the stack, or a member. It outlives this, so declare it before; one that a
  // shared_ptr owns is kept alive as above. Neither may be moved, nor lose parameters, while this lives.
  DataParallel(torch::nn::Module& module, Group group, DataParallelOptions options = {});
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // While it lives, torch's default generator belongs to the lane, and batch norm starts from the step's
  // beginning. The generator's own state comes back afterwards.
  class LaneScope;
  [[nodiscard]] LaneScope lane(const LaneInfo& info);

  // While it lives, backward adds up gradients locally.
  class NoSync;
  [[nodiscard]] NoSync no_sync();

  std::vector<NamedTensor> parameters() const override;
  void synchronize() override;
  void end_step() override;
  // Forgets what this step has gathered so far: after an exception in the middle of a step. Every rank; one
  // that does so alone is named at the next exchange. Buffers are as the step found them: before its first
  // lane, or, without lanes, as the exchange before, or the constructor, left them (but for what was loaded
  // since).
  void reset();

  // Compares the bits of all replicas now. Collective.
  void check_replicas();

  torch::nn::Module& module() const { return *module_; }
  const Group& group() const { return group_; }
  Reducer& reducer() { return *reducer_; }
  double bucket_cap_mb() const { return options_.bucket_cap_mb; }  // as given or chosen

 private:
  struct Lanes;  // the lane under way, and what travels with the gradients
  void begin_lane(const LaneInfo& info);
  void end_lane() noexcept;

  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  DataParallelOptions options_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Reducer> reducer_;
};

class DataParallel::LaneScope {
 public:
  ~LaneScope();
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

 private:
  friend class DataParallel;
  LaneScope(DataParallel& owner, const LaneInfo& info);
  DataParallel& owner_;
  torch::Tensor generator_state_;
};

class DataParallel::NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class DataParallel;
  explicit NoSync(DataParallel& owner);
  DataParallel& owner_;
  bool before_;
};

}  // namespace lockstep
