// How good the model is on examples that it has not learnt from.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

struct Evaluation {
  double loss = 0;              // mean
  std::vector<double> metrics;  // as the task has them
};
// The task's metric "accuracy", where it has one.
std::optional<double> accuracy_of(const Task& task, const std::optional<Evaluation>& evaluation);

// Of the task's test set. The workers share the batches; the sums are taken in the order of the batches, so
// the result has the same bits for any number of workers. Collective. The model is in training mode
// afterwards.
// `place` moves a batch to where the model is.
Evaluation evaluate(Strategy& strategy, const Task& task, std::int64_t batch,
                    const std::function<Batch(const Batch&)>& place = std::identity());

}  // namespace lockstep
