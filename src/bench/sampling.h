// Timing several ways of doing the same thing side by side, on all ranks at once.
//
// Rounds: in each, every contender runs a batch, the order rotating, so that what changes on the machine
// meanwhile hits all alike. A sample is: barrier (ours), clock, one call, clock; its time is the slowest
// rank's. A batch starts with a call that is not timed, so that each finds its own data in the caches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

struct Contender {
  std::function<void()> call;
  std::function<void()> prepare = {};  // before every call, not timed; may be empty
  std::vector<double> us = {};         // sorted samples; the same on every rank
};

struct SamplingOptions {
  int iterations = 0;       // samples of each; 0: as many as fit in the time
  double min_time_s = 0.3;  // for each contender
  int warmup = 3;           // calls before the first sample
  double fewest = 10;       // samples, even when that takes longer (up to ten times the time)
};

// Collective over `world`.
void sample_interleaved(const Group& world, std::vector<Contender>& contenders,
                        const SamplingOptions& options);

}  // namespace lockstep
