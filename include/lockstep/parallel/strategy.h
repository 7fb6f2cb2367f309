// One model, many workers: all that a training loop, an optimizer and a checkpoint may know of how it is
// done. DataParallel (data_parallel.h) is one strategy; strategies.h makes them by name.
//
//   lockstep::AdamW optimizer(strategy);
//   for (auto& lane : step) {
//     auto scope = strategy.lane(lane);
//     loss(model->forward(lane.data), lane.target).backward();
//   }
//   optimizer.step();
//
// What a new one has to do is written where it inherits it: gradients and slices in grad/gradient_source.h,
// lanes and the rest here. One whose workers each hold the whole model begins from Replicated (replicated.h).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/grad/exchange.h"
#include "lockstep/grad/exchange_log.h"
#include "lockstep/grad/gradient_source.h"
#include "lockstep/offload/offload.h"

namespace lockstep {

// How a worker comes by the parameters that others hold, where they are in shards (Sharded).
enum class ParameterAccess : unsigned char {
  chosen,    // mapped where workers of a machine have memory in common (on GPUs: all workers on one, over
             // ipc) and neither gathered_mb nor shard_workers is given, gathered elsewhere
  mapped,    // one copy a machine, in that memory
  gathered,  // in units, when they are needed (units.h)
};

struct StrategyOptions {
  // 0: chosen. 25 in the shared memory of one machine; between machines the smallest size that the links
  // carry about as fast. The bits are the same for every size.
  double bucket_cap_mb = 0;
  double first_bucket_mb = 1;  // small, so that communication starts early
  // false: a parameter that gets no gradient on some worker that ran a backward is an error that names it.
  bool find_unused_parameters = true;
  // In every so many exchanges the replicas' bits are compared, whoever updates them, and in the 2nd, 4th,
  // 8th … before that; a difference is an Error that names the parameter. 0: never.
  std::int64_t check_replicas_every = 500;
  ReducePrecision reduce_precision = ReducePrecision::same;  // of 16-bit gradients (grad/exchange.h)
  // Of the strategy's own exchange. Empty: the cost table chooses.
  std::string algorithm = {};
  Order order = Order::canonical;
  // In place of it (grad/exchange.h), one that leaves at least what the strategy wants: bf16_exchange of
  // compress/bf16.h; or just what becomes of a bucket, all of it.
  std::function<Exchange(Exchange::Leaves wanted)> exchange = {};
  BucketHook hook = {};
  ParameterAccess parameters = ParameterAccess::chosen;
  // Gathered parameters never take more; a model that has to is refused, with what it needs. 0: as much as
  // its two largest units, or more where units lie in each other or are used twice in a forward.
  double gathered_mb = 0;
  // Parameters are in shards among so many workers in a row, and as often there as that goes into their
  // number (HYBRID_SHARD); 0: among all, or among those of a node.
  int shard_workers = 0;
  bool shard_inside_nodes = false;
  // The parts of parameters that this worker holds are in a file there, not in memory, and are gathered from
  // it (`parameters` is `gathered` then): offload/offload.h. Stage `parameters` alone.
  Offload offload_params = {};
  // Take |gradient|² of each lane, a pass over it while it is in cache: Strategy::lane_squares().
  bool measure_lanes = false;
};

class Strategy : public GradientSource {
 public:
  // While it lives, torch's default generators (the processor's, and that of the GPU where the model is)
  // belong to the lane, and batch norm starts from the step's beginning. Their own state comes back
  // afterwards.
  class LaneScope;
  [[nodiscard]] LaneScope lane(const LaneInfo& info);

  // While it lives, backward adds up gradients locally.
  class NoSync;
  [[nodiscard]] NoSync no_sync();

  // While it lives, every parameter of the module is there as a whole, to be read, saved or loaded; what is
  // written is kept, if every worker writes the same. It changes something, and takes the memory of all
  // parameters, where they are gathered in units (units.h). Where workers have one copy it begins when all
  // are there: what one of them writes, no other still computes with. One inside another changes nothing.
  // Between steps. Collective.
  class Whole;
  [[nodiscard]] Whole whole();
  // The same of one tensor at a time, to be read: for who goes over all of them, in one order on every
  // worker. Where parameters are gathered in units it takes the memory of a bucket of them. Between steps.
  // Collective, and so is every bring().
  class EachWhole;
  [[nodiscard]] EachWhole each_whole();
  // Returns when every worker has got here. Behind forwards outside of steps, as evaluation's, of which
  // workers may have different numbers: those who are done meanwhile serve the others with their parameters.
  // Nothing where parameters are not gathered in units. Collective.
  virtual void meet() = 0;

  // Forgets what this step has gathered so far: after an exception in the middle of a step. Every rank; one
  // that does so alone is named at the next exchange in which it has gradients (without any it is as one that
  // skips its backward, unless it gave means up that others have updated with). Buffers are as the step found
  // them: before its first lane, or, without lanes, as the exchange before, or the constructor, left them
  // (but for what was loaded since). Behind the step's exchange they stay as it left them. It brings no rank
  // to another step: where some had exchanged theirs before the exception, all are told at the next, and each
  // time again until they go through the same step (a program that can't say which goes on from a
  // checkpoint).
  virtual void reset() = 0;
  // Compares the bits of what all workers hold alike. Throws MismatchError naming what differs. Collective.
  virtual void check_replicas() = 0;

  virtual torch::nn::Module& module() const = 0;
  torch::Device device();  // of its parameters
  virtual const Group& group() const = 0;

  // How gradients travel. The log is that of the last exchange, until the next begins.
  virtual const ExchangeLog& last_exchange() const = 0;
  virtual double bucket_cap_mb() const = 0;  // as given or chosen
  // Which bucket the gradient of parameters()[i] is in.
  virtual int bucket_of(std::size_t i) const = 0;
  virtual const Exchange& exchange() const = 0;
  // Memory that this worker holds for parameters, in bytes: of one copy for several, its share.
  virtual std::size_t parameter_bytes() const = 0;
  // Memory that this worker holds for gradients, in bytes.
  virtual std::size_t gradient_bytes() const = 0;
  // Whether parameters are gathered in units (units.h) to be computed with.
  virtual bool gathers() const = 0;
  // Memory that parameters took at most that were gathered to be computed with, in bytes.
  virtual std::size_t gathered_bytes() const = 0;
  // Of parameters that this worker has on disk, in steps of so many lanes a worker; nullopt: it has none
  // there.
  virtual std::optional<OffloadFigures> offload(int lanes) const = 0;
  // |gradient|² of each lane that this worker went through in this step, in their order, in f64: the same for
  // every number of workers. Empty without StrategyOptions::measure_lanes.
  virtual std::vector<double> lane_squares() const = 0;

 protected:
  // What the scopes do. A begin_lane that throws has begun nothing.
  virtual void begin_lane(const LaneInfo& info) = 0;
  virtual void end_lane() noexcept = 0;
  // Returns what was before.
  virtual bool set_sync(bool on) = 0;
  virtual void set_whole(bool on) = 0;
  // This parameter is there until the next call, of which an undefined one is the last.
  virtual void bring(const torch::Tensor& parameter) = 0;

 private:
  std::optional<torch::Device> device_;  // once somebody has asked
  int wholes_ = 0;                       // scopes that live
};

class Strategy::LaneScope {
 public:
  ~LaneScope();
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

 private:
  friend class Strategy;
  LaneScope(Strategy& owner, const LaneInfo& info);
  Strategy& owner_;
  std::vector<torch::Tensor> generator_states_;
};

class Strategy::Whole {
 public:
  ~Whole() noexcept(false);
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

 private:
  friend class Strategy;
  explicit Whole(Strategy& owner);
  Strategy& owner_;
};

class Strategy::EachWhole {
 public:
  ~EachWhole() noexcept(false);
  EachWhole(const EachWhole&) = delete;
  EachWhole& operator=(const EachWhole&) = delete;
  // A parameter or buffer of the module is whole until the next call.
  void bring(const torch::Tensor& tensor) const;

 private:
  friend class Strategy;
  explicit EachWhole(Strategy& owner) : owner_(owner) {}
  Strategy& owner_;
};

class Strategy::NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class Strategy;
  explicit NoSync(Strategy& owner);
  Strategy& owner_;
  bool before_;
};

}  // namespace lockstep
