// What options say together of how gradients travel, and of where an optimizer keeps its state.
#pragma once

#include "recipe/train_options.h"

namespace lockstep {

inline constexpr const char* kOwnOptimizers = "sgd, adam, adamw, lars or lamb";  // with any exchange

// Whether the loss is scaled before backward.
bool scales_loss(const TrainOptions& o);

// Each throws UsageError, one line that names the flag and what is accepted.
void check_compress(const TrainOptions& o);
void check_onebit_adam(const TrainOptions& o);
void settle_offload(TrainOptions& o);  // and makes its folder's name whole

}  // namespace lockstep
