// Parameters of a unit of which each worker holds a part: from when the unit is made (construction.h) until a
// strategy takes it.
//
// The parameters lie one behind the other, and each worker has an equal part of that row, whatever a strategy
// makes of them later: bucket sizes and tied weights are not known yet. So the strategy brings a unit
// together once more, and takes from it what its layout wants.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// What a worker holds of a model's units while it is made and taken over, in bytes.
struct PartsTally {
  std::size_t now = 0;
  std::size_t peak = 0;
  void add(std::size_t bytes);
  void remove(std::size_t bytes) { now -= bytes; }
};

// On the processor or a GPU, dense in memory and of a type that is trained.
bool can_be_cut(const torch::Tensor& parameter);

class UnitParts {
 public:
  // Of parameters that are whole, and cut by this. Collective.
  UnitParts(Group group, std::string name, const std::vector<torch::Tensor>& parameters,
            std::shared_ptr<PartsTally> tally);

  bool holds(const torch::Tensor& parameter) const;
  bool whole() const { return part_ == nullptr; }
  int workers() const { return group_.size(); }

  // The parameters get memory, with all workers' parts in it; nothing where they have. Collective.
  void bring();
  // Each worker keeps its part of what rank 0 has; all of it where one can't be cut any more. Throws
  // MismatchError where sizes or types differ. Collective.
  void cut();
  // A parameter has moved to where its strategy wants it.
  void moved(const torch::Tensor& parameter);
  PartsTally& tally() const { return *tally_; }

 private:
  std::size_t lay_out();  // in bytes, of a part
  std::size_t row_bytes() const { return part_bytes_ * static_cast<std::size_t>(group_.size()); }

  Group group_;
  std::string name_;  // for messages
  std::vector<NamedTensor> parameters_;
  std::vector<std::size_t> offsets_;
  std::size_t part_bytes_ = 0;
  std::size_t whole_bytes_ = 0;  // of the parameters, while they are whole
  std::size_t left_ = 0;         // that have not moved yet
  std::shared_ptr<void> part_;   // null: the parameters are whole
  Device device_ = {};           // where they were when they were cut
  std::shared_ptr<PartsTally> tally_;
};

// The units of a model that were cut when they were made, for the strategy that takes it.
class CutUnits {
 public:
  // Throws UsageError that names a parameter of the module that is in parts, but in no unit of it.
  explicit CutUnits(const torch::nn::Module& module);

  bool empty() const { return parts_.empty(); }
  // Makes the unit whole that has this parameter, where one has. Collective.
  void bring(const torch::Tensor& parameter) const;
  void moved(const torch::Tensor& parameter) const;
  // A strategy holds so much more of them.
  void hold(std::size_t bytes) const;
  // Throws UsageError where they were cut among fewer workers than these, which may have other values.
  void check(const Group& group) const;
  // Brings together what is in parts; from here on the model's units are as if made without. Collective.
  void join() const;

 private:
  std::shared_ptr<UnitParts> parts_of(const torch::Tensor& parameter) const;

  std::vector<std::shared_ptr<class UnitPoint>> points_;
  std::vector<std::shared_ptr<UnitParts>> parts_;
};

}  // namespace lockstep
