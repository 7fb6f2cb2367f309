// What a run's first steps tell of the time that a step should take.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/parallel/strategy.h"
#include "report/step_figures.h"
#include "train/prediction.h"

namespace lockstep {

class StepProfiler {
 public:
  // The `number`th step of this process, from 1; `backward_begin_ns` is that of its last lane. Only the first
  // ones after the run has settled are kept.
  void add(std::int64_t number, const StepRecord& step, const std::vector<BucketTimes>& buckets,
           std::int64_t backward_begin_ns, const ExchangeLog& log);

  // Adds predicted_step_ms and predicted_comm_fraction: what the cost table expects of the exchange, and the
  // profiled steps of what goes on beside it. null where the engine has no table.
  void add_prediction(const Strategy& strategy, nlohmann::ordered_json& summary) const;

 private:
  std::vector<StepTimes> steps_;
};

}  // namespace lockstep
