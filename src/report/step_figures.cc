#include "report/step_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {

std::int64_t union_ns(std::span<const BucketTimes> buckets, std::int64_t until_ns) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const BucketTimes& b : buckets)
    spans.emplace_back(std::min(b.start_ns, until_ns), std::min(b.end_ns, until_ns));
  std::ranges::sort(spans);
  std::int64_t total = 0, reached = INT64_MIN;
  for (const auto& [start, end] : spans) {
    if (end <= reached) continue;
    total += end - std::max(start, reached);
    reached = end;
  }
  return total;
}

StepFigures figures_of(std::span<const StepRecord> steps) {
  StepFigures figures;
  if (steps.empty()) return figures;
  std::vector<double> ms;
  double time = 0, compute = 0, comm = 0, hidden = 0, waited = 0, samples = 0, loss = 0;
  for (const StepRecord& s : steps) {
    ms.push_back(static_cast<double>(s.step_ns()) / 1e6);
    time += static_cast<double>(s.step_ns());
    compute += static_cast<double>(s.compute_ns());
    comm += static_cast<double>(s.comm_ns);
    hidden += static_cast<double>(s.hidden_ns);
    waited += static_cast<double>(s.data_wait_ns);
    samples += static_cast<double>(s.samples);
    loss += s.loss;
  }
  std::ranges::sort(ms);
  figures.step_ms_p50 = quantile_of_sorted(ms, 0.5);
  figures.step_ms_p95 = quantile_of_sorted(ms, 0.95);
  figures.samples_per_s = time > 0 ? samples / time * 1e9 : 0;
  figures.comm_fraction = compute + comm > 0 ? comm / (compute + comm) : 0;
  figures.overlap_fraction = comm > 0 ? hidden / comm : 1;
  figures.data_wait_fraction = time > 0 ? waited / time : 0;
  figures.mean_loss = loss / static_cast<double>(steps.size());
  return figures;
}

FinalLoss final_loss(std::span<const double> losses, std::int64_t steps_per_epoch, NotFinite not_finite) {
  const auto count = std::min(losses.size(), static_cast<std::size_t>(steps_per_epoch));
  FinalLoss result;
  double sum = 0;
  for (const double loss : losses.last(count)) {
    if (!std::isfinite(loss) && not_finite == NotFinite::was_skipped) continue;
    sum += loss;
    ++result.steps;
  }
  result.mean =
      result.steps == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(result.steps);
  return result;
}

std::span<const StepRecord> settled(std::span<const StepRecord> steps) {
  return steps.subspan(std::min<std::size_t>(3, steps.size() / 4));
}

void BucketLatencies::add(std::span<const BucketTimes> buckets) {
  for (const BucketTimes& b : buckets) {
    by_bucket_[{b.bucket, b.bytes}].record(b.end_ns - b.start_ns);
    all_.record(b.end_ns - b.start_ns);
  }
}

std::string BucketLatencies::csv() const {
  std::string text = "bucket,bytes,count,p50_us,p95_us,p99_us,max_us,mean_us\n";
  const auto add = [&](const std::string& name, const std::string& bytes, const Histogram& h) {
    text += fmt::format(
        "{},{},{},{:.1f},{:.1f},{:.1f},{:.1f},{:.1f}\n", name, bytes, h.count(),
        static_cast<double>(h.quantile(0.5)) / 1e3, static_cast<double>(h.quantile(0.95)) / 1e3,
        static_cast<double>(h.quantile(0.99)) / 1e3, static_cast<double>(h.max()) / 1e3, h.mean() / 1e3);
  };
  for (const auto& [key, histogram] : by_bucket_)
    add(std::to_string(key.first), std::to_string(key.second), histogram);
  if (all_.count() > 0) add("all", "", all_);
  return text;
}

}  // namespace lockstep
