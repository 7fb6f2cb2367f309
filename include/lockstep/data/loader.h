// Feeds a worker its lanes, step by step, made ahead of time on threads of its own.
//
//   for (auto& step : lockstep::loader(dataset, world, {.lanes = 8, .lane_batch = 32}))
//     for (auto& lane : step) { auto scope = ddp.lane(lane); … lane.data, lane.target … }
//
// Iterating goes through the epochs from the position on; `epochs` or `steps` ends it. What a lane holds is a
// function of (dataset, seed, step, lane): the same bits whichever worker carries it, after any resume, and
// for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/lane_board.h"
#include "lockstep/comm/lanes.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

struct Lane;

struct LoaderOptions {
  int lanes = 0;  // 0: one a worker
  int lane_batch = 32;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool augment = true;
  LastStep last_step = LastStep::wrap;  // what becomes of the examples that fill no step (sampler.h)
  std::int64_t epochs =
      1;  // how many epochs in all, counted from the start of the run; 0: as many as `steps` needs
  std::int64_t steps = 0;       // at most so many steps in all; 0: as the epochs have
  std::int64_t first_step = 0;  // resume: steps done before
  int prefetch = 2;             // steps made ahead, 1 or more
  int threads = 1;  // that make steps, beside those made ahead; the dataset is asked by all of them
  // What else is done to a lane that was made, on the thread that made it: it moves to a device.
  std::function<void(Lane& lane)> place = {};
};

// data, target and whatever else the dataset gives: lane.data, lane["mask"].
struct Lane : LaneInfo, Batch {
  std::int64_t samples = 0;
  // f32 [samples], where the dataset's examples weigh differently. The lane's loss is then their weighted
  // mean, (weights × losses).sum() / weight.
  torch::Tensor weights;
};

// This worker's lanes of one step. May be empty (with LastStep::short_, fewer examples than lanes in the last
// step of an epoch; or more workers than subtrees, comm/lanes.h): the worker then takes part in the step
// without a lane.
//
// Going through it tells the group's strategies (comm/lane_board.h), so that gradients are there when the
// loop ends on a worker without lanes too. So every worker goes through it, also one that has none.
//
// weight and total_weight: 1 and the number of lanes when all lanes of the step are equally large; otherwise
// a lane's samples × Dataset::weight() and the sum of that over all lanes. Where the examples have weights of
// their own (Dataset::weights): always the sum over the lane's samples, and over all lanes in their order. A
// lane may then weigh 0: whatever it computes, NaN too, it counts for nothing, and its backward may be left
// out. A step of weight 0 changes neither parameters nor buffers.
//
// A loop over it may be left by `break`: the lanes behind it are passed over.
struct Step {
  std::int64_t number = 0;  // of the run, from 0
  std::int64_t epoch = 0;
  std::int64_t of_epoch = 0;  // step within the epoch, from 0
  bool ends_epoch = false;
  std::int64_t samples = 0;  // of all lanes of all workers
  double total_weight = 1;
  std::vector<Lane> lanes;  // to look at; gone through by `for (auto& lane : step)`, of which strategies hear
  bool everybodys = true;   // every worker has a lane in it
  int most = 1;             // lanes of a worker, in any step
  std::uint64_t draw = 0;   // that of its lanes, also where this worker has none
  Group group = {};         // whose strategies are told; empty: nobody is

  class Iterator;
  Iterator begin();
  Iterator end();
};

class Step::Iterator {
 public:
  using value_type = Lane;
  using difference_type = std::ptrdiff_t;
  Iterator() = default;
  Iterator(Step* step, std::size_t at, std::shared_ptr<const LaneLoopGuard> loop = {})
      : step_(step), at_(at), loop_(std::move(loop)) {}
  Lane& operator*() const { return step_->lanes[at_]; }
  Lane* operator->() const { return &step_->lanes[at_]; }
  Iterator& operator++() {
    if (++at_ == step_->lanes.size() && step_->group) step_->group.lane_board()->end(step_->group, step_);
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(const Iterator& other) const { return at_ == other.at_; }

 private:
  Step* step_ = nullptr;
  std::size_t at_ = 0;
  std::shared_ptr<const LaneLoopGuard> loop_;  // for who leaves it early
};

inline Step::Iterator Step::begin() {
  if (group) {
    LaneBoard& board = *group.lane_board();
    board.begin({.of = this,
                 .step = number,
                 .draw = draw,
                 .mine = !lanes.empty(),
                 .everybodys = everybodys,
                 .most = most});
    if (!lanes.empty()) return {this, 0, std::make_shared<LaneLoopGuard>(group, this)};
    board.end(group, this);
  }
  return {this, 0};
}
inline Step::Iterator Step::end() { return {this, lanes.size()}; }

class Loader {
 public:
  // Starts making steps at once. Throws UsageError naming the option and what it accepts.
  // Strategies of `group` are told of loops over lanes.
  Loader(std::shared_ptr<const Dataset> dataset, int rank, int size, LoaderOptions options, Group group = {});
  ~Loader();  // at any time; waits for the lanes that are being made
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  std::int64_t steps() const;  // of the whole run, those done before included
  std::int64_t steps_per_epoch() const;
  // The next step, or null at the end. Valid until the next call. Throws DatasetError where the dataset
  // threw, after the steps before that one, and again on every later call. Where an exception has left the
  // loop over the last step's lanes it ends that loop, and throws what the step's exchange has failed with as
  // long as nobody has called the strategy's reset(). The increment in `for (auto& step : loader)`, behind
  // the body and what is caught there, does the same.
  Step* next();
  // How long next() has waited for data so far, in nanoseconds.
  std::int64_t waited_ns() const;

  // A range over next(): a single pass, with `epochs` or `steps` as long as is wanted. UsageError where it
  // has come to its end before.
  class Iterator;
  Iterator begin();
  std::nullptr_t end() const { return nullptr; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Loader::Iterator {
 public:
  explicit Iterator(Loader* loader) : loader_(loader), step_(loader->next()) {}
  Step& operator*() const { return *step_; }
  Iterator& operator++() {
    step_ = loader_->next();
    return *this;
  }
  bool operator==(std::nullptr_t) const { return step_ == nullptr; }

 private:
  Loader* loader_;
  Step* step_;
};

Loader loader(std::shared_ptr<const Dataset> dataset, const Group& world, LoaderOptions options = {});

}  // namespace lockstep
