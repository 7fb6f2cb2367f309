// Latencies in a fixed space, and exact quantiles of a few samples.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// Counts of latencies over the whole range of the clock. Buckets are log-linear: one nanosecond wide
// below 64 ns, then 64 buckets to each power of two, so that a quantile is within 1 % of the truth.
// About 30 KiB, never allocates. One thread records at a time; record into one a thread and merge.
class Histogram {
 public:
  void record(std::int64_t ns) {  // negative counts as 0
    const std::uint64_t value = ns < 0 ? 0 : static_cast<std::uint64_t>(ns);
    ++buckets_[bucket_of(value)];
    ++count_;
    sum_ += static_cast<double>(value);
    min_ = value < min_ ? value : min_;
    max_ = value > max_ ? value : max_;
  }
  void merge(const Histogram& other);
  void clear() { *this = Histogram(); }

  std::uint64_t count() const { return count_; }
  // In nanoseconds; 0 when nothing was recorded. min, max and mean are exact.
  std::int64_t min() const { return count_ == 0 ? 0 : static_cast<std::int64_t>(min_); }
  std::int64_t max() const { return static_cast<std::int64_t>(max_); }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // The smallest recorded value that at least q of all do not exceed; quantile(0) is min(), quantile(1)
  // is max(). Throws UsageError unless 0 <= q <= 1.
  std::int64_t quantile(double q) const;

 private:
  static constexpr int kLinearBits = 6;
  static constexpr std::uint64_t kLinear = std::uint64_t{1} << kLinearBits;  // buckets a power of two
  static constexpr std::size_t kBuckets = (64 - kLinearBits) * kLinear;      // up to 2^63 - 1

  // Value v with top bit e >= 6 keeps its seven leading bits: bucket (e - 6) * 64 + (v >> (e - 6)).
  static std::size_t bucket_of(std::uint64_t value) {
    if (value < kLinear) return value;
    const int shift = static_cast<int>(std::bit_width(value)) - 1 - kLinearBits;
    return static_cast<std::size_t>(shift) * kLinear + (value >> shift);
  }
  static std::uint64_t middle_of(std::size_t bucket);

  std::array<std::uint64_t, kBuckets> buckets_ = {};
  std::uint64_t count_ = 0;
  double sum_ = 0;  // exact up to 2^53 ns, 104 days
  std::uint64_t min_ = UINT64_MAX;
  std::uint64_t max_ = 0;
};

// The q-quantile of samples in ascending order, interpolated between the two nearest: of {1, 2} the
// median is 1.5. Throws UsageError when there are none, or unless 0 <= q <= 1.
double quantile_of_sorted(std::span<const double> sorted, double q);
// Of samples in any order. Throws UsageError when there are none.
double median_of(std::vector<double> samples);

}  // namespace lockstep
