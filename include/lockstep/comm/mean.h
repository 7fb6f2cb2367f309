// A mean over all workers, for a loss or an accuracy:
//
//   double loss = lockstep::mean(world, loss_sum, samples);    // Σ loss_sum / Σ samples
//   double seconds = lockstep::mean(world, own_seconds);       // of one number each
//
// A mean of the workers' means would weigh a worker with few samples as much as one with many: so sums
// travel, and are divided once.
#pragma once

#include "lockstep/comm/group.h"

namespace lockstep {

// Σ sum / Σ weight over all ranks, in f64 and in the canonical order: the same bits on every rank. NaN where
// all weights are 0. Every rank calls it; throws UsageError for a weight below 0 or not finite.
double mean(const Group& group, double sum, double weight, CallOptions options = {});

// Each rank's value weighs the same.
double mean(const Group& group, double value);

}  // namespace lockstep
