// A model that is larger than one worker's memory: each of its units is cut as soon as it is made.
//
//   lockstep::ShardedConstruction scope(world);
//   auto model = std::make_shared<Net>();   // with lockstep::shard(block) for each block, as in units.h
//   lockstep::Sharded sharded(model, world, lockstep::ShardStage::parameters);
//
// While the scope lives, every unit that this thread makes leaves each worker an equal part of its parameters
// and gives the rest back, before the next unit is made. A strategy then takes the model unit by unit: into
// the parts that its layout wants, or into the copy that the workers of a machine have between them. So a
// worker never holds more of the units than its part of the model and two of them, or those that have a
// bucket in common (StrategyOptions::bucket_cap_mb) where these are more.
//
// The values are those of the model built whole: every worker makes the same model, and what rank 0 has made
// of a unit is what counts, as with every strategy. Where all start from the same seed (torch::manual_seed)
// they have the same and nothing is sent; otherwise rank 0's is.
//
// Rules
//  - All workers of the group make the same units in the same order, and give the model to a strategy of the
//    same workers: making a unit is collective (MismatchError where two differ, PeerError where one is gone).
//  - What is made in no unit is whole on every worker, and so is a unit until shard() or Unit{{…}} is
//    called with it: call it at once, not at the end of the model's constructor. What they give is kept as
//    long as the model: the parts go with it (UsageError from the strategy).
//  - A unit's parameters have no memory from then on. What changes them later, still in the constructor, does
//    so in initialise(unit, fn); what changes a whole model, behind it, in for_each_unit(model, fn).
//  - A strategy that holds parameters whole (DataParallel, stages 1 and 2) brings them together again.
//  - A unit is cut where it is: one that a function given to for_each_unit has moved to a GPU is in parts
//    there. Parameters that are not dense in memory, and a unit on several devices, stay whole, also where
//    such a function has made them so. One worker alone holds all.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "lockstep/comm/group.h"

namespace lockstep {

class UnitParts;
class UnitPoint;
struct PartsTally;

class ShardedConstruction {
 public:
  // Throws UsageError inside of another one of this thread.
  explicit ShardedConstruction(Group group);
  ~ShardedConstruction();
  ShardedConstruction(const ShardedConstruction&) = delete;
  ShardedConstruction& operator=(const ShardedConstruction&) = delete;

  // What this worker held of the units' parameters, in bytes, at most at a time so far: its parts, and units
  // that were whole. It goes on while a strategy takes the model, and then counts what that holds of them.
  std::size_t peak_bytes() const;

 private:
  friend class UnitPoint;
  struct Made;
  static ShardedConstruction*& current();
  void take(UnitPoint& point);

  Group group_;
  std::shared_ptr<PartsTally> tally_;
  std::unique_ptr<Made> made_;
};

// Changes a model of any size: fn(module) with each of its units whole, one after the other, with the unit's
// modules; and at last with the model itself, when those are in parts again. So fn changes what has memory
// (has_memory) and leaves alone what it has changed before. For a model that was not cut the last call is the
// only one. What rank 0 makes of it counts. Collective where units were cut.
void for_each_unit(torch::nn::Module& model, const std::function<void(torch::nn::Module& module)>& fn);
// false: a parameter of a unit that is in parts.
bool has_memory(const torch::Tensor& parameter);

}  // namespace lockstep
