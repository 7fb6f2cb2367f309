// Which examples a lane sees in a step: a function of (size, options, epoch, step, lane), so it needs no
// state, resumes anywhere, and does not depend on the number of workers.
//
// An epoch is a permutation of all examples, cut into steps of lanes × lane_batch; lane l of a step takes the
// l-th piece. What is left at the end forms one more, smaller step, spread over as many lanes as get two
// examples each at least (batch norm needs two); a single example left over joins the last full step, in its
// first lane. With a lane_batch of 1 a lane never gets more than one. So every example is seen once an epoch.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int lanes = 1;
  int lane_batch = 32;
  std::uint64_t seed = 0;
  bool shuffle = true;
};

class Sampler {
 public:
  // Throws UsageError when there is nothing to sample.
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
  void make_order(std::int64_t epoch) const;

  std::int64_t size_;
  SamplerOptions options_;
  std::int64_t steps_ = 0;  // an epoch
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> order_;
};

}  // namespace lockstep
