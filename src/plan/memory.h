// What a worker's model state takes, by kind: arithmetic on numbers of parameters and nothing else, so that a
// plan (plan/memory_plan.h) and a run (train/footprint.h) say the same.
//
// The stages are those of ZeRO (Rajbhandari et al. 2020). What each of W workers holds:
//
// | stage | strategy | parameters | gradients | optimizer |
// |---|---|---|---|---|
// | 0 | ddp | all | all | all |
// | 1 | zero1 | all | all | 1 / W |
// | 2 | zero2 | all | 1 / W | 1 / W |
// | 3 | zero3 | 1 / W | 1 / W | 1 / W |
//
// Stage 3 keeps one copy of the parameters a machine, in memory that its workers have in common: 1 / W is
// that of one machine, and on several the share of a worker is 1 by the workers of its machine. So do workers
// that share one GPU; those on several gather. Where sets of workers hold all parameters between them
// (hybrid-shard) it is 1 by the workers of a set. Frozen parameters are whole everywhere.
//
// A worker that carries several lanes adds up their gradients until its last lane, so from stage 2 on it
// holds them whole beside its own part, in as many sets of buckets as that takes (grad/gradient_store.h).
//
// Activations, buffers and gaps for alignment are not in it.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// By stage.
inline constexpr const char* kStageStrategies[] = {"ddp", "zero1", "zero2", "zero3"};
// Stage 3, too.
inline constexpr const char* kHybridShard = "hybrid-shard";
// Throws UsageError that lists them.
int stage_of(const std::string& strategy);

// Parameters that are alike. Numbers of them are doubles: exact up to 2^53.
struct ParameterKind {
  double count = 0;  // elements
  int element_bytes = 4;
  bool trained = true;  // false: frozen, without gradient and state
};

struct ModelSize {
  std::vector<ParameterKind> parameters = {};
  ParameterKind largest_tensor = {};  // a bucket is at least as large; count 0: not known
  double largest_unit_bytes = 0;      // of what would be gathered at once, usually a block; 0: not known
  double count() const;               // of all parameters
};

// What the optimizer keeps of each parameter beside its master. `momentum`: of sgd and lars.
int moments_of(const std::string& optimizer, double momentum);

// Buckets of 25 MiB (StrategyOptions::bucket_cap_mb).
inline constexpr double kBucketBytes = 25 * 1024 * 1024;
// One that backward fills while two are exchanged (grad/bucket_slots.h).
inline constexpr int kBucketsInFlight = 3;
// Of parameters that workers of other machines have updated, on their way.
inline constexpr int kBucketsArriving = 2;
// One that is computed with, and the next.
inline constexpr int kGatheredUnits = 2;
// Of the optimizer's state while it is on disk (offload/offload.h).
inline constexpr int kPagesInMemory = 6;
// Parts of buckets in memory while the rest of a worker's parameters is on disk (parallel/shard_store.h): of
// those that it holds for its set two that gathers read into; around an update its own, one each that is read
// and written and two where what is updated is of two buckets, half of which take the memory of gathers.
inline constexpr int kHeldPartsInMemory = 2;
inline constexpr int kOwnPartsInMemory = 2;

struct StateForm {
  int stage = 0;
  int workers = 1;
  int machine_workers = workers;  // those of this worker's machine
  int sharers = workers;          // workers that hold all parameters between them, where they are gathered
  int lanes = 1;                  // that this worker carries
  int moments = 2;
  int master_bytes = 0;          // kept of each 16-bit parameter; 0: none
  int least_gradient_bytes = 0;  // 4 where 16-bit gradients are added up in f32
  double bucket_bytes = kBucketBytes;
  // Memory in the place of the optimizer's state, which is on disk; 0: it is not. On GPUs it is on disk, or
  // in the host's memory, and takes none of theirs.
  double staging_bytes = 0;
  bool params_on_disk = false;    // stage 3: a worker's part of the parameters, too
  bool gathers = params_on_disk;  // stage 3: units though workers of a machine have memory in common
  bool on_gpus = false;
  bool one_gpu = false;   // all workers on the same one
  bool one_copy = false;  // stage 3 is known to keep one a machine, also where a worker is alone on its own
  // Whether workers of a machine have memory in common where the parameters are.
  bool has_common_memory() const { return machine_workers > 1 && (!on_gpus || one_gpu); }
  // Stage 3 has no memory to keep its one copy in where no two workers are on one machine, or on one GPU:
  // there it gathers the parameters unit by unit and lets them go (parallel/units.h).
  bool has_to_gather() const {
    return stage >= 3 && ((workers > 1 && !has_common_memory() && !one_copy) || gathers);
  }
};

// A worker's, in bytes.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;  // all sets of buckets
  double optimizer = 0;  // master weights included; of what is on disk, what takes its place
  double in_flight = 0;  // at most: buckets of gradients and parameters on their way, gathered units
  double on_disk = 0;    // of the optimizer's state; of GPUs' on disk or in the host's memory
  double params_on_disk = 0;
  double state() const { return parameters + gradients + optimizer; }
  double total() const { return state() + in_flight; }
};
StateBytes state_bytes(const ModelSize& model, const StateForm& form);

// Sets of buckets in which the sums of so many lanes wait for each other (grad/gradient_store.h): one for
// every digit of the number of pairs.
int gradient_sets(int lanes);

}  // namespace lockstep
