// What a step holds for one worker: a function of (dataset, options, number), in two parts, so that several
// threads can make steps at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "lockstep/comm/lanes.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

// A step before its examples are read.
struct StepDraft {
  using Examples = std::vector<std::int64_t>;
  Step step;
  std::vector<Examples> examples;      // of the step's lanes, this worker's
  std::vector<Examples> of_all_lanes;  // of all workers; only where examples weigh differently
};

class StepMaker {
 public:
  // Throws UsageError naming the option and what it accepts.
  StepMaker(std::shared_ptr<const Dataset> dataset, int rank, int size, const LoaderOptions& options);

  std::int64_t steps() const { return steps_; }  // of the run
  std::int64_t steps_per_epoch() const { return sampler_.steps_per_epoch(); }
  std::uint64_t draw() const { return draw_; }  // LaneInfo's

  // By one thread at a time: the sampler keeps the order of an epoch.
  StepDraft draft(std::int64_t number) const;
  // By any number of threads. Nothing when `stop` is requested between two lanes. Throws DatasetError.
  std::optional<Step> make(StepDraft draft, const std::stop_token& stop) const;

 private:
  void weigh(StepDraft& draft) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  LaneRange mine_;
  int last_first_ = 0;  // the first lane of the worker whose lanes come last
  int most_ = 0;        // lanes of a worker
  Sampler sampler_;
  std::int64_t steps_;
  std::uint64_t draw_;
  bool weighted_;  // the dataset's examples weigh differently
};

}  // namespace lockstep
