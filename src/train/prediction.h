// How long a training step should take by the cost table: a model of one step, without running it.
//
// A worker computes: what comes before backward, backward, what follows the exchange. Bucket i is ready when
// a part of backward is done, and its exchange begins once it is ready and the one before has ended. While
// both go on they cost each other something, above all where they share a core: how much is measured, with
// other bytes.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

struct BucketProfile {
  double ready = 0;       // the part of backward after which it is full, 0 to 1
  double exchange_s = 0;  // what its all-reduce is expected to take
};

// What exchanging and computing at the same time do to each other.
struct Crowding {
  double begin_s = 0;        // that the beginning of an exchange takes longer
  double slower = 1;         // times as long as alone, from then on; at least 1
  double backward_rate = 1;  // of backward beside an exchange, above 0, at most 1
};

struct StepProfile {
  double waiting_s = 0;   // for data, which is no work
  double before_s = 0;    // from the step's beginning to the backward that exchanges
  double backward_s = 0;  // alone
  double after_s = 0;     // from the end of the exchange to that of the step: buffers, optimizer
  double share_s = 0;     // what workers that update a part each are expected to take to share their updates
  std::vector<BucketProfile> buckets = {};
  double counts_s = 0;  // the small exchange behind the buckets
  Crowding crowding = {};
};

// What was measured of one step.
struct StepTimes {
  double waiting_s = 0;
  double before_s = 0;
  double backward_s = 0;
  double after_s = 0;                // without the sharing of updates
  std::vector<double> ready_s = {};  // of each bucket, from backward's beginning
  double exchange_s = 0;             // its buckets' all-reduces took, together
};
// Their medians; what the exchanges take is left to the caller.
StepProfile profile_of(std::span<const StepTimes> steps);

// How much longer than expected, and so than alone, the exchanges of these steps took beside computing: on
// average, for where threads share a core a few wait long. `profile` says what was expected.
Crowding crowding_of(std::span<const StepTimes> steps, const StepProfile& profile);

// As train_metrics.h defines them.
struct StepPrediction {
  double step_s = 0;
  double compute_s = 0;
  double comm_s = 0;     // the exchanges of all buckets, and the sharing of updates
  double hidden_s = 0;   // of that, before backward's end
  double exposed_s = 0;  // backward's thread waits, and the optimizer for the others' updates
  double comm_fraction() const { return compute_s + comm_s > 0 ? comm_s / (compute_s + comm_s) : 0; }
};

StepPrediction predict_step(const StepProfile& profile);

}  // namespace lockstep
