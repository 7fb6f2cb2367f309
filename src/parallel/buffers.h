// A module's buffers across lanes and workers: floating-point ones (batch norm's statistics) are averaged in
// canonical order, whole numbers (its counters) take the largest.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

class BufferAverager {
 public:
  BufferAverager(torch::nn::Module& module, Group group);
  bool empty() const { return reals_.empty() && wholes_.empty(); }

  // Lanes: the first one keeps the buffers as the step's beginning, later ones start from it again.
  void begin_lane(int position);
  // What the lane made of them joins the sum.
  void end_lane(int position, double weight);

  // Begins the average over all lanes of all workers; `lanes_here` of them were ended here. `divisor` is
  // their total weight.
  void exchange(int lanes_here, double divisor);
  // Without lanes: over the workers, as they are.
  void exchange();
  // Waits, and writes the averages into the module.
  void finish();

 private:
  void pack();
  void merge_last();  // the last two sums become one

  Group group_;
  std::vector<torch::Tensor> reals_;
  std::vector<torch::Tensor> wholes_;
  CommMemory real_memory_;
  CommMemory whole_memory_;
  torch::Tensor real_flat_;           // f64, in comm memory
  torch::Tensor whole_flat_;          // i64, in comm memory
  std::vector<torch::Tensor> begin_;  // of the step
  std::vector<torch::Tensor> sums_;   // of lanes, like the digits of a binary counter
  torch::Tensor largest_;
  std::vector<Work> works_;
};

}  // namespace lockstep
