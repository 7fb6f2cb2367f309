// One parameter of an optimizer.
#pragma once

#include "lockstep/optim/optimizer.h"

namespace lockstep {

struct Optimizer::Slot {
  std::string name;
  torch::Tensor parameter;
  std::vector<torch::Tensor> state;  // as Traits::state_names
  std::int64_t step = 0;             // updates so far
  double lr_scale = 1;
  std::optional<double> weight_decay = {};  // a group's; else the optimizer's
};

}  // namespace lockstep
