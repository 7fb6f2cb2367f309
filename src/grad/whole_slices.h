// Slices that are whole parameters, and their gradients grad().
#pragma once

#include <span>
#include <vector>

#include "lockstep/grad/gradient_source.h"

namespace lockstep {

class WholeSlices {
 public:
  explicit WholeSlices(const std::vector<NamedTensor>& parameters);
  // With the gradients as they are now.
  std::span<const Slice> now();
  // Holds no gradient any more.
  void forget();

 private:
  std::vector<Slice> slices_;
};

// GradientSource::join() of those.
void join_whole(const std::vector<torch::Tensor>& parts, const GradientSource::Take& take);

}  // namespace lockstep
