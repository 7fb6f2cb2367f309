// Clipping of gradients, by their global norm or one by one, between the last backward of a step and the
// optimizer's step():
//
//   for (auto& lane : step) { auto scope = ddp.lane(lane); … .backward(); }
//   lockstep::clip_grad_norm_(ddp, 1.0);
//   optimizer.step();
#pragma once

#include "lockstep/grad/gradient_source.h"

namespace lockstep {

// Synchronizes the source, then scales all gradients so that their norm is at most `max_norm`: by
// max_norm / (norm + 1e-6) where that is below one, as in PyTorch. Returns the norm before. norm_type: 2, any
// other positive number, or infinity. Sums are taken in f64 and in an order that is fixed: the same bits on
// every worker and for every number of them and of threads. Every rank calls it; throws UsageError for a
// max_norm or norm_type that is no such number.
double clip_grad_norm_(GradientSource& source, double max_norm, double norm_type = 2);

// Synchronizes the source, then brings every element of the gradients to at least -clip_value and at most
// clip_value; a NaN stays. Every rank calls it; throws UsageError for a clip_value below 0 or NaN.
void clip_grad_value_(GradientSource& source, double clip_value);

}  // namespace lockstep
