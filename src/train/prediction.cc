#include "train/prediction.h"

#include <algorithm>

#include "lockstep/observe/histogram.h"

namespace lockstep {
namespace {

// Backward and the exchanges, on one clock that starts with backward.
class Timeline {
 public:
  explicit Timeline(const StepProfile& profile)
      : backward_s_(profile.backward_s), crowding_(profile.crowding) {}

  void exchange(const BucketProfile& bucket) {
    compute_until(std::clamp(bucket.ready, 0.0, 1.0) * backward_s_);
    const double crowded = crowding_.begin_s + crowding_.slower * bucket.exchange_s;
    const double left = (backward_s_ - done_) / crowding_.backward_rate;  // until backward ends beside it
    if (left >= crowded) {
      pass(crowded, crowding_.backward_rate);
      comm_s_ += crowded;
      hidden_s_ += crowded;
      return;
    }
    pass(left, crowding_.backward_rate);
    done_ = backward_s_;
    const double alone = crowded > 0 ? bucket.exchange_s * (1 - left / crowded) : 0;  // the rest of its way
    hidden_s_ += left;
    comm_s_ += left + alone;
    now_ += alone;
  }

  StepPrediction end(const StepProfile& profile) {
    compute_until(backward_s_);
    const double exposed = now_ - backward_end_ + profile.counts_s + profile.share_s;
    return {.step_s = profile.waiting_s + profile.before_s + backward_end_ + exposed + profile.after_s,
            .compute_s = profile.before_s + backward_end_ + profile.after_s,
            .comm_s = comm_s_ + profile.share_s,
            .hidden_s = hidden_s_,
            .exposed_s = exposed};
  }

 private:
  // Nothing is exchanged until so much of backward is done.
  void compute_until(double done) {
    if (done > done_) pass(done - done_, 1);
    done_ = std::max(done_, done);
  }
  void pass(double seconds, double rate) {
    if (!(seconds > 0)) return;
    now_ += seconds;
    done_ += seconds * rate;
    backward_end_ = now_;
  }

  double backward_s_;
  Crowding crowding_;
  double now_ = 0;
  double done_ = 0;          // of backward, in seconds that it takes alone
  double backward_end_ = 0;  // when backward last went on
  double comm_s_ = 0;
  double hidden_s_ = 0;
};

}  // namespace

StepProfile profile_of(std::span<const StepTimes> steps) {
  StepProfile profile;
  if (steps.empty()) return profile;
  // Buckets are laid out anew after the first exchange: only steps with the last layout tell of it.
  const std::size_t buckets = steps.back().ready_s.size();
  std::vector<StepTimes> alike;
  for (const StepTimes& s : steps)
    if (s.ready_s.size() == buckets) alike.push_back(s);
  const auto median = [&](auto&& part) {
    std::vector<double> values;
    for (const StepTimes& s : alike) values.push_back(part(s));
    return median_of(std::move(values));
  };
  profile.waiting_s = median([](const StepTimes& s) { return s.waiting_s; });
  profile.before_s = median([](const StepTimes& s) { return s.before_s; });
  profile.backward_s = median([](const StepTimes& s) { return s.backward_s; });
  profile.after_s = median([](const StepTimes& s) { return s.after_s; });
  for (std::size_t b = 0; b < buckets; ++b)
    profile.buckets.push_back({.ready = median([b](const StepTimes& s) {
                                 return s.backward_s > 0 ? s.ready_s[b] / s.backward_s : 1;
                               })});
  return profile;
}

Crowding crowding_of(std::span<const StepTimes> steps, const StepProfile& profile) {
  double expected_s = 0;
  for (const BucketProfile& bucket : profile.buckets) expected_s += bucket.exchange_s;
  double took_s = 0;
  std::size_t alike = 0;
  for (const StepTimes& step : steps) {
    if (step.ready_s.size() != profile.buckets.size()) continue;
    took_s += step.exchange_s;
    ++alike;
  }
  if (!(expected_s > 0) || alike == 0) return {};
  return {.slower = std::max(1.0, took_s / static_cast<double>(alike) / expected_s)};
}

StepPrediction predict_step(const StepProfile& profile) {
  Timeline timeline(profile);
  for (const BucketProfile& bucket : profile.buckets) timeline.exchange(bucket);
  return timeline.end(profile);
}

}  // namespace lockstep
