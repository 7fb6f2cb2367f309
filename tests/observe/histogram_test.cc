#include "lockstep/observe/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Histogram, EmptyIsAllZero) {
  const auto h = std::make_unique<Histogram>();
  EXPECT_EQ(h->count(), 0U);
  EXPECT_EQ(h->min(), 0);
  EXPECT_EQ(h->max(), 0);
  EXPECT_EQ(h->mean(), 0);
  EXPECT_EQ(h->quantile(0.5), 0);
}

TEST(Histogram, OneValueIsEveryQuantile) {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{127},
        std::int64_t{128}, std::int64_t{1'000'003}, std::numeric_limits<std::int64_t>::max()}) {
    const auto h = std::make_unique<Histogram>();
    h->record(value);
    for (const double q : {0.0, 0.3, 0.5, 1.0}) EXPECT_EQ(h->quantile(q), value);
    EXPECT_EQ(h->min(), value);
    EXPECT_EQ(h->max(), value);
    EXPECT_EQ(h->mean(), static_cast<double>(value));
  }
}

TEST(Histogram, NegativeCountsAsZero) {
  const auto h = std::make_unique<Histogram>();
  h->record(-5);
  EXPECT_EQ(h->count(), 1U);
  EXPECT_EQ(h->min(), 0);
  EXPECT_EQ(h->max(), 0);
}

// Every power of two and its neighbours: the median of {0, v, huge} must be v within 1 %.
TEST(Histogram, AnyMagnitudeIsWithinOnePercent) {
  for (int bit = 0; bit < 63; ++bit)
    for (const int offset : {-1, 0, 1}) {
      const std::int64_t value = (std::int64_t{1} << bit) + offset;
      const auto h = std::make_unique<Histogram>();
      h->record(0);
      h->record(value);
      h->record(std::numeric_limits<std::int64_t>::max());
      EXPECT_NEAR(static_cast<double>(h->quantile(0.5)), static_cast<double>(value),
                  0.01 * static_cast<double>(value));
    }
}

TEST(Histogram, QuantilesOfARandomLoadAreWithinOnePercent) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> latency(9, 2);  // around 8 µs, long tail
  std::vector<std::int64_t> samples(20'000);
  const auto h = std::make_unique<Histogram>();
  double sum = 0;
  for (auto& sample : samples) {
    sample = static_cast<std::int64_t>(latency(random));
    sum += static_cast<double>(sample);
    h->record(sample);
  }
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(h->count(), samples.size());
  EXPECT_EQ(h->min(), samples.front());
  EXPECT_EQ(h->max(), samples.back());
  EXPECT_DOUBLE_EQ(h->mean(), sum / static_cast<double>(samples.size()));
  for (const double q : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    const auto place = static_cast<std::size_t>(std::ceil(q * static_cast<double>(samples.size())));
    const auto truth = static_cast<double>(samples[place - 1]);
    EXPECT_NEAR(static_cast<double>(h->quantile(q)), truth, 0.01 * truth) << q;
  }
}

TEST(Histogram, MergingIsTheSameAsRecordingAll) {
  const auto all = std::make_unique<Histogram>();
  const auto a = std::make_unique<Histogram>();
  const auto b = std::make_unique<Histogram>();
  for (std::int64_t i = 1; i < 5000; ++i) {
    all->record(i * i);
    (i % 3 == 0 ? a : b)->record(i * i);
  }
  a->merge(*b);
  a->merge(*std::make_unique<Histogram>());  // of nothing: min stays
  EXPECT_EQ(a->count(), all->count());
  EXPECT_EQ(a->min(), all->min());
  EXPECT_EQ(a->max(), all->max());
  EXPECT_DOUBLE_EQ(a->mean(), all->mean());
  for (double q = 0; q <= 1; q += 0.01) EXPECT_EQ(a->quantile(q), all->quantile(q));
  a->clear();
  EXPECT_EQ(a->count(), 0U);
}

TEST(Histogram, RefusesQuantilesOutsideZeroToOne) {
  const auto h = std::make_unique<Histogram>();
  EXPECT_THROW(h->quantile(-0.1), UsageError);
  EXPECT_THROW(h->quantile(1.1), UsageError);
  EXPECT_THROW(h->quantile(std::nan("")), UsageError);
}

TEST(Quantiles, AreExact) {
  const std::vector<double> sorted = {1, 2, 3, 4, 5};
  EXPECT_DOUBLE_EQ(quantile_of_sorted(sorted, 0.1), 1.4);
  EXPECT_EQ(quantile_of_sorted(sorted, 1), 5);
  EXPECT_EQ(median_of({5, 1, 4, 2, 3}), 3);
  EXPECT_EQ(median_of({2, 1}), 1.5);
  EXPECT_EQ(median_of({7}), 7);
  EXPECT_THROW(quantile_of_sorted({}, 0.5), UsageError);
  EXPECT_THROW(quantile_of_sorted(sorted, -0.1), UsageError);
}

}  // namespace
}  // namespace lockstep
