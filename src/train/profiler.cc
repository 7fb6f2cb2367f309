#include "train/profiler.h"

#include <nlohmann/json.hpp>

#include "train/exchange.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Steps from whose compute the step time is predicted, counted from 1: after the first, in which memory is
// touched and buckets are laid out anew.
constexpr std::int64_t kSettled = 3;
constexpr std::int64_t kLastProfiled = 50;

}  // namespace

void StepProfiler::add(std::int64_t number, const StepRecord& step, const std::vector<BucketTimes>& buckets,
                       std::int64_t backward_begin_ns, const ExchangeLog& log) {
  if (number <= kSettled || number > kLastProfiled) return;
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  StepTimes t{.waiting_s = seconds(step.data_wait_ns),
              .before_s = seconds(backward_begin_ns - step.begin_ns - step.data_wait_ns),
              .backward_s = seconds(log.wait_begin_ns - backward_begin_ns),
              .after_s = seconds(step.end_ns - log.wait_end_ns - (log.share_end_ns - log.share_begin_ns))};
  for (const BucketTimes& b : buckets) {
    t.ready_s.push_back(seconds(b.ready_ns - backward_begin_ns));
    t.exchange_s += seconds(b.end_ns - b.start_ns);
  }
  steps_.push_back(std::move(t));
}

// Backward as it was measured has lost to the exchange what processor time that took.
void StepProfiler::add_prediction(const Strategy& strategy, Json& summary) const {
  StepProfile profile = profile_of(steps_);
  double buffers_s = 0;  // after_s has it
  const bool known = !steps_.empty() && expect_exchange(strategy, profile, buffers_s);
  if (known) profile.crowding = crowding_of(steps_, profile);
  const StepPrediction predicted = predict_step(profile);
  summary["predicted_step_ms"] = known ? Json(predicted.step_s * 1e3) : Json();
  summary["predicted_comm_fraction"] = known ? Json(predicted.comm_fraction()) : Json();
}

}  // namespace lockstep
