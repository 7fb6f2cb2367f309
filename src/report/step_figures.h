// Where the time of a training step goes, and the figures made from it.
//
//   start    a bucket's exchange began: in one memory with all workers there, over messages with this one,
//            which then waits for the others in it (WorkTiming::running_ns)
//   T_comm   the length of the union of [start, end] over the step's buckets, and over those of updated
//            parameters where each worker updates a part
//   exposed  how long backward's thread waited at the end of backward, for the buckets and for slower
//   workers,
//            and the optimizer for the others' parameters
//   hidden   the part of T_comm before backward's end
//   T_comp   step time - exposed - waiting for data
//   communication share = ΣT_comm / (ΣT_comp + ΣT_comm);  overlap = Σhidden / ΣT_comm
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/observe/histogram.h"
#include "lockstep/report/noise_scale.h"

namespace lockstep {

// One bucket's way through one exchange, in nanoseconds of now_ns().
struct BucketTimes {
  int bucket = 0;
  std::size_t bytes = 0;
  std::int64_t ready_ns = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::string algorithm = {};
};

// Only what lies before `until_ns` counts.
std::int64_t union_ns(std::span<const BucketTimes> buckets, std::int64_t until_ns = INT64_MAX);

struct StepRecord {
  std::int64_t step = 0;   // 1 is the first
  std::int64_t epoch = 0;  // likewise
  double loss = 0;
  double lr = 0;
  std::int64_t samples = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t data_wait_ns = 0;
  std::int64_t comm_ns = 0;
  std::int64_t hidden_ns = 0;
  std::int64_t exposed_ns = 0;
  bool skipped = false;                   // its gradients overflowed, and it changed nothing
  std::vector<double> further = {};       // whatever else RunFolder has a column for
  std::optional<NoiseSample> noise = {};  // where it is measured

  std::int64_t step_ns() const { return end_ns - begin_ns; }
  std::int64_t compute_ns() const { return step_ns() - exposed_ns - data_wait_ns; }
};

struct StepFigures {
  double step_ms_p50 = 0;
  double step_ms_p95 = 0;
  double samples_per_s = 0;
  double comm_fraction = 0;
  double overlap_fraction = 1;
  double data_wait_fraction = 0;  // of the step time
  double mean_loss = 0;
};
// Zeros of no steps.
StepFigures figures_of(std::span<const StepRecord> steps);

// What a run has come to: the mean loss of its last epoch. A single step's says little.
struct FinalLoss {
  double mean = 0;  // NaN of no steps
  std::int64_t steps = 0;
};
// `losses`: of every step so far. The mean is over the last `steps_per_epoch` of them, or all where there are
// fewer: the last epoch where the run ends with one, and as many steps where it ends within one. Steps whose
// loss is not finite count unless they were skipped.
enum class NotFinite : std::uint8_t { counts, was_skipped };
FinalLoss final_loss(std::span<const double> losses, std::int64_t steps_per_epoch, NotFinite not_finite);

// Steps that tell how fast the run is: without the first few, in which memory is touched for the first time,
// costs are measured and buckets are laid out anew.
std::span<const StepRecord> settled(std::span<const StepRecord> steps);

// Latency of the exchange, bucket by bucket. Buckets are told apart by number and size, since they are laid
// out anew after the first exchange.
class BucketLatencies {
 public:
  void add(std::span<const BucketTimes> buckets);
  std::string csv() const;

 private:
  std::map<std::pair<int, std::size_t>, Histogram> by_bucket_;
  Histogram all_;
};

}  // namespace lockstep
