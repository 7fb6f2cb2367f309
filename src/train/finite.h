// Numbers that are not finite: where they are, and what keeps them out of the weights.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/strategy.h"
#include "train/run_plan.h"

namespace lockstep {

// The name of the first parameter or buffer with a NaN or an infinity in it; empty when all are finite.
// Collective where parameters are gathered.
std::string first_not_finite(Strategy& strategy);

// What --on-nan asks for, step by step. Every rank has one; they are told the same and do the same.
class FiniteWatch {
 public:
  // `on_nan`: stop, skip or go-on. `sink` is told of steps that are not finite; empty: nobody is. Gradients
  // of a loss that is scaled are the scaler's business: where the loss itself is finite they have overflowed.
  enum class Loss : std::uint8_t { plain, scaled };
  FiniteWatch(std::string on_nan, Strategy& strategy, Loss loss, EventSink sink);

  // Before the step's first lane.
  void begin_step();
  // Once the loss of all lanes and the gradients are there: whether the weights are to be updated. `lanes`:
  // those whose loss is not finite. A step that is skipped leaves batch norm's statistics as they were.
  bool accept(double loss, const std::vector<int>& lanes);
  // After it. Says what was not finite; gives it, when the run is to stop: always with --on-nan stop, with
  // skip when the weights themselves are not finite, since no later step can then be any better. Where
  // something was not finite (found) the weights come together to be looked at: nobody else reads them then.
  bool found() const { return !found_.empty(); }
  std::string end_step(std::int64_t step);

  // Steps that were not finite, with those of the parts of the run before this one.
  void go_on_after(std::int64_t steps) { earlier_ = steps; }
  std::int64_t steps_not_finite() const { return earlier_ + steps_; }

 private:
  std::string on_nan_;
  Strategy& strategy_;
  Loss loss_;
  const torch::nn::Module& model_;
  EventSink sink_;
  std::vector<torch::Tensor> buffers_, kept_;  // the model's, and what they were when the step began
  std::string found_;                          // of this step
  std::int64_t steps_ = 0, earlier_ = 0;
};

}  // namespace lockstep
