// The options of the learning rate: what follows from what, and what contradicts what.
#pragma once

#include "recipe/train_options.h"

namespace lockstep {

// Whether the optimizer scales the rate of each parameter.
bool is_layerwise(const TrainOptions& options);

// Whether the rate falls until the run's end, so that its length counts.
bool falls_to_end(const TrainOptions& options);

// Fills in learning rate, weight decay and exclusions that are not given. Throws UsageError for two rates,
// two ways to clip, and a warm-up that is longer than the run.
void settle_rate(TrainOptions& options);

}  // namespace lockstep
