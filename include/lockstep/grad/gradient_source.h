// Where an optimizer gets its gradients from: what every strategy (DataParallel, …) offers.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace lockstep {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // The parameters that are trained, each once, in registration order.
  virtual std::vector<NamedTensor> parameters() const = 0;
  // Returns when every parameter's grad() is the mean over all lanes of this step (undefined for a parameter
  // that no lane used). Collective when this step's gradients have not been exchanged yet.
  virtual void synchronize() = 0;
  // The optimizer has used the gradients: what comes next belongs to the next step.
  virtual void end_step() = 0;
};

}  // namespace lockstep
