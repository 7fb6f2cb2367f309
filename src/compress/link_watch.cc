#include "compress/link_watch.h"

#include <algorithm>
#include <utility>

#include "base/core_wait.h"

namespace lockstep::compress {
namespace {

bool differ(double a, double b) { return a > LinkWatch::kFactor * b || b > LinkWatch::kFactor * a; }

// Second calls of one bucket run beside the first of the next.
double busy_seconds(std::span<const SentBucket> step) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const SentBucket& bucket : step) {
    const WorkTiming timing = bucket.work.timing();
    if (timing.running_ns == 0) return 0;
    spans.emplace_back(timing.running_ns, timing.end_ns);
  }
  std::ranges::sort(spans);
  std::int64_t busy_ns = 0, until_ns = 0;
  for (const auto& [begin_ns, end_ns] : spans) {
    busy_ns += std::max<std::int64_t>(end_ns - std::max(begin_ns, until_ns), 0);
    until_ns = std::max(until_ns, end_ns);
  }
  return static_cast<double>(busy_ns) * 1e-9;
}

}  // namespace

LinkView real_links() {
  return {
      .expected = [](const Group& group, const CallQuestion& call) { return group.expected_seconds(call); },
      .took = busy_seconds,
      .waited_for_core = [] { return seconds_without_core(); }};
}

void LinkWatch::restart() {
  sent_.clear();
  has_begun_ = counts_ = false;
  early_.clear();
  late_.clear();
}

void LinkWatch::begin_step(std::int64_t left) {
  const bool counted = counts_;
  if (counted) end_step();
  const bool is_late = left > 0 && left <= static_cast<std::int64_t>(kSteps);
  counts_ = has_begun_ && (is_late || early_.size() < kSteps);
  if (counts_ && !counted) waited_s_ = waited_s();
}

void LinkWatch::end_step() {
  const double waited_s = this->waited_s();
  const double waiting_s = waited_s - std::exchange(waited_s_, waited_s);
  double step_s = links_.took(sent_);
  if (waiting_s > kMostWaiting * step_s) step_s = 0;
  sent_.clear();
  if (early_.size() < kSteps) early_.push_back(step_s);
  late_.push_back(step_s);
  if (late_.size() > kSteps) late_.pop_front();
}

void LinkWatch::add(const Work& work, double expected_s) {
  has_begun_ = true;
  if (counts_) sent_.push_back({work, expected_s});
}

double middle(std::vector<double> seconds) {
  std::erase_if(seconds, [](double s) { return !(s > 0); });
  std::ranges::sort(seconds);
  return seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

double rescaled(double scale, const Period& period) {
  if (!(period.early_s > 0) || !(period.late_s > 0) || !(period.table_s > 0)) return scale;
  if (period.codec_s == 0)
    return differ(period.late_s, scale * period.table_s) ? period.late_s / period.table_s : scale;
  if (differ(period.late_s, period.early_s)) return scale * period.late_s / period.early_s;
  if (period.late_s > LinkWatch::kFactor * (scale * period.table_s + period.codec_s))
    return std::max(scale, (period.late_s - period.codec_s) / period.table_s);
  return scale;
}

}  // namespace lockstep::compress
