// How long a training step should take by the cost table: a model of one step, without running it.
//
// A worker computes: what comes before backward, backward, what follows the exchange. Bucket i is ready when
// a part of backward is done, and its exchange begins once it is ready and the one before has ended. Where
// the exchange and backward share a core, the exchange takes its processor time from backward, each getting
// what it wants as long as that is at most half: so a fair scheduler divides a core.
#pragma once

#include <span>
#include <vector>

namespace lockstep::cli {

struct BucketProfile {
  double ready = 0;       // the part of backward after which it is full, 0 to 1
  double exchange_s = 0;  // what its all-reduce is expected to take
};

struct StepProfile {
  double waiting_s = 0;   // for data, which is no work
  double before_s = 0;    // from the step's beginning to the backward that exchanges
  double backward_s = 0;  // alone
  double after_s = 0;     // from the end of the exchange to that of the step: buffers, optimizer
  std::vector<BucketProfile> buckets = {};
  double counts_s = 0;  // the small exchange behind the buckets
  // Processor time that a second of exchange takes on backward's core, 0 to 1.
  double exchange_cpu = 0;
};

// What was measured of one step.
struct StepTimes {
  double waiting_s = 0;
  double before_s = 0;
  double backward_s = 0;
  double after_s = 0;
  std::vector<double> ready_s = {};  // of each bucket, from backward's beginning
};
// Their medians; what the exchanges take is left to the caller.
StepProfile profile_of(std::span<const StepTimes> steps);

// As train_metrics.h defines them.
struct StepPrediction {
  double step_s = 0;
  double compute_s = 0;
  double comm_s = 0;     // the exchanges of all buckets
  double hidden_s = 0;   // of that, before backward's end
  double exposed_s = 0;  // backward's thread waits
  double comm_fraction() const { return compute_s + comm_s > 0 ? comm_s / (compute_s + comm_s) : 0; }
};

StepPrediction predict_step(const StepProfile& profile);

}  // namespace lockstep::cli
