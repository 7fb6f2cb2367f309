// How fast and how well a model predicts: what `lockstep infer` measures.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/train/trainer.h"

namespace lockstep {

struct InferResult {
  std::int64_t examples = 0;
  // Of an example: its batch's time from the input to the class, over the batch's size.
  double ms_p50 = 0, ms_p95 = 0, ms_mean = 0;
  double accuracy = 0;
  double loss = 0;
};

// The first `examples` (0: all) of the task's test set, `batch` at once. The task's forward and loss are
// needed; the model is in evaluation mode. `place` moves a batch to where it is, which is part of the time.
// Local.
InferResult infer(const Task& task, std::int64_t batch, std::int64_t examples,
                  const std::function<Batch(const Batch&)>& place = std::identity());

}  // namespace lockstep
