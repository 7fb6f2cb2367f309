// Which parameters of a model are gathered together.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "parallel/unit_points.h"

namespace lockstep {

// A parameter belongs to the innermost unit around the module that has it, or to several that were made of
// the same module; tied weights to those of all such modules. Each of them brings it. One that a module
// outside of all units has too belongs to none.
struct UnitLayout {
  std::vector<std::shared_ptr<UnitPoint>> points;  // the units that have parameters
  std::vector<std::string> names;                  // of those, for messages: "blocks.3"
  // What belongs to the same units has the same number, from 1 on; 0: belongs to none. One a parameter.
  std::vector<int> kinds;
  std::vector<std::vector<int>> units_of_kind;  // by kind; of 0 none
};
UnitLayout lay_out_units(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters);

}  // namespace lockstep
