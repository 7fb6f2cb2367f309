// Where the units of models are: which modules a unit is of, and who wants to know when it computes.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// Who brings a unit's parameters. A use is one time through a unit's forward, and its backward.
class UnitKeeper {
 public:
  virtual ~UnitKeeper() = default;
  // Returns when the unit's parameters are there.
  virtual std::shared_ptr<void> begin_forward(int unit) = 0;
  // They may go. `outputs`: what the forward gave, whose backward is the unit's; none where it failed, or
  // where backward is told by the two below.
  virtual void end_forward(const std::shared_ptr<void>& use,
                           const std::vector<torch::Tensor>& outputs) noexcept(false) = 0;
  // Around the backward of a use that is computed anew.
  virtual void begin_backward(const std::shared_ptr<void>& use) = 0;
  virtual void end_backward(const std::shared_ptr<void>& use) = 0;
};

class UnitParts;

class UnitPoint {
 public:
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  bool recompute = false;
  std::weak_ptr<UnitKeeper> keeper = {};  // none: the parameters are there
  int number = 0;                         // the keeper's, of this unit
  // What holds its parameters in parts, where it was made in a ShardedConstruction, until a strategy has
  // them.
  std::vector<std::shared_ptr<UnitParts>> parts = {};

  // Cuts them, where it is made in one.
  void made();
  // Throws UsageError where a strategy should have taken the model before its forward.
  void refuse_parts() const;
};

// The units of which all modules lie in `module`, in the order in which they were made.
std::vector<std::shared_ptr<UnitPoint>> units_in(const torch::nn::Module& module);
// All modules of a unit and those below them.
std::vector<const torch::nn::Module*> modules_of(const UnitPoint& point);
// It, and all that lies in it.
std::vector<const torch::nn::Module*> modules_in(const torch::nn::Module& module);

}  // namespace lockstep
