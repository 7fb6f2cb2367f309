// |gradient|² of each lane of a step, taken when its gradients come: while they are in cache, and before they
// are added to other lanes'.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

namespace lockstep {

// The sum of the squares of its elements in f64, in an order that its size alone decides.
double sum_of_squares(const torch::Tensor& tensor);

class LaneSquares {
 public:
  explicit LaneSquares(std::size_t parameters) : parameters_(parameters) {}

  // `position` counts this worker's lanes of the step from 0, which forgets those before.
  void begin_lane(int position);
  // The gradient of a parameter in this lane, before it is weighted.
  void add(std::size_t parameter, const torch::Tensor& gradient);

  // Of the step's lanes so far. Gradients come in any order and are added up in that of the parameters.
  std::vector<double> lanes() const;

 private:
  std::size_t parameters_;
  std::vector<std::vector<double>> squares_;  // lane by lane, one a parameter
};

}  // namespace lockstep
