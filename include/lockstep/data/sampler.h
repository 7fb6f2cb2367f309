// Which examples a lane sees in a step: a function of (size, options, epoch, step, lane), so it needs no
// state, resumes anywhere, and does not depend on the number of workers.
//
// An epoch is a permutation of all examples, cut into steps of lanes × lane_batch; lane l of a step takes the
// l-th piece. What is left at the end is less than a step: LastStep says what becomes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// The examples that are left when an epoch has been cut into full steps. None of these depends on the number
// of workers.
enum class LastStep : unsigned char {
  // A smaller step, spread over as many lanes as get two examples each at least (batch norm needs two); a
  // single example left over joins the last full step, in its first lane. With a lane_batch of 1 a lane never
  // gets more than one. Every example is seen once an epoch: for evaluation. In training batch norm's
  // statistics of such small lanes show as spikes of the loss.
  short_,
  // They are left out: another epoch, in another order, has them. Refused where there is no full step at all.
  drop,
  // The step is filled up with the beginning of the same epoch's order, again and again where that is
  // shorter than the step. Every example is seen, fewer than lanes × lane_batch of them twice.
  wrap,
};
// "short", "drop", "wrap".
const char* to_string(LastStep last_step);
// Throws UsageError that lists them.
LastStep parse_last_step(const std::string& name);

// The numbers 0 … size - 1 in the order of one epoch: shuffled from (seed, epoch), the same on every machine.
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle = true);

struct SamplerOptions {
  int lanes = 1;
  int lane_batch = 32;
  std::uint64_t seed = 0;
  bool shuffle = true;
  LastStep last_step = LastStep::wrap;
};

class Sampler {
 public:
  // Throws UsageError when there is nothing to sample, or, with LastStep::drop, less than one step.
  Sampler(std::int64_t size, SamplerOptions options);

  std::int64_t size() const { return size_; }
  const SamplerOptions& options() const { return options_; }
  std::int64_t steps_per_epoch() const { return steps_; }

  // How many examples each lane gets in this step of an epoch: `lanes` numbers, zeros last.
  std::vector<std::int64_t> lane_sizes(std::int64_t step_of_epoch) const;
  // The examples of one lane. The permutation of the epoch asked for last is kept: one thread at a time.
  std::vector<std::int64_t> lane(std::int64_t epoch, std::int64_t step_of_epoch, int lane) const;

 private:
  std::int64_t step_batch() const { return std::int64_t{options_.lanes} * options_.lane_batch; }

  std::int64_t size_;
  SamplerOptions options_;
  std::int64_t steps_ = 0;  // an epoch
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> order_;
};

}  // namespace lockstep
