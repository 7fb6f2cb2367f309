#include "lockstep/observe/histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void check_quantile(double q) {
  if (!(q >= 0 && q <= 1)) throw UsageError(fmt::format("quantile {}; accepted: 0 to 1", q));
}

}  // namespace

void Histogram::merge(const Histogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

std::uint64_t Histogram::middle_of(std::size_t bucket) {
  if (bucket < 2 * kLinear) return bucket;  // one value wide
  const auto shift = bucket / kLinear - 1;
  const std::uint64_t low = (bucket % kLinear + kLinear) << shift;
  return low + (std::uint64_t{1} << shift) / 2;
}

std::int64_t Histogram::quantile(double q) const {
  check_quantile(q);
  if (count_ == 0) return 0;
  // The 1-based place of the wanted value; the extremes are known exactly.
  const auto place = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_)));
  if (place <= 1) return min();
  if (place >= count_) return max();
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen >= place) return static_cast<std::int64_t>(std::clamp(middle_of(i), min_, max_));
  }
  return max();
}

double quantile_of_sorted(std::span<const double> sorted, double q) {
  check_quantile(q);
  if (sorted.empty()) throw UsageError("quantile of no samples; at least one is needed");
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], at - static_cast<double>(low));
}

double median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return quantile_of_sorted(samples, 0.5);
}

}  // namespace lockstep
