// Stochastic methods are right on average. Keys are fixed, so a run either always passes or never.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "codec/reference.h"
#include "codec/values.h"

namespace lockstep {
namespace {

using namespace testing;

// The mean of many payloads is normal around the value, with the deviation that the method's variance gives
// it. All elements are within five and a half deviations (one of 700 in some 40,000 keys would not be); the
// sum of squared deviations is a chi-square, within five of its own deviations, sqrt(2 n), of n; and so is
// the sum of deviations towards larger magnitudes, sqrt(n), of 0, which finds a bias of 1 % of a level's
// distance in all elements.
void expect_unbiased(const std::string& name, std::span<const float> values,
                     const std::vector<double>& unit) {
  constexpr int kDraws = 4000;
  const auto codec = make_codec(name);
  std::vector<double> mean(values.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto got = sent(*codec, values, {.seed = 1, .step = draw, .subtree = 0, .parameter = 9});
    for (std::size_t i = 0; i < values.size(); ++i) mean[i] += static_cast<double>(got[i]) / kDraws;
  }
  double squares = 0;
  double signed_sum = 0;
  int counted = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = unit[i] == 0 ? 0 : std::fabs(static_cast<double>(values[i])) / unit[i];
    const double rest = p - std::floor(p);
    const double deviation = unit[i] * std::sqrt(rest * (1 - rest) / kDraws);
    const double off = mean[i] - static_cast<double>(values[i]);
    // Few events are no normal distribution; roundings are the rest.
    if (rest * (1 - rest) * kDraws < 10) {
      EXPECT_LE(std::fabs(off), 15 * unit[i] / kDraws + unit[i] * 1e-5) << name << ", element " << i;
      continue;
    }
    EXPECT_LE(std::fabs(off), 5.5 * deviation) << name << ", element " << i << " is " << values[i];
    squares += off / deviation * (off / deviation);
    signed_sum +=
        std::copysign(off / deviation, values[i] * off);  // towards larger magnitudes or smaller ones
    ++counted;
  }
  ASSERT_GT(counted, static_cast<int>(values.size()) / 2) << name;
  EXPECT_LE(std::fabs(squares - counted), 5 * std::sqrt(2.0 * counted)) << name;
  EXPECT_LE(std::fabs(signed_sum), 5 * std::sqrt(1.0 * counted)) << name;
}

TEST(Unbiased, Qsgd) {
  const auto values = gradient(700);
  for (const int levels : {1, 7, 16, 127}) {
    std::vector<double> unit(values.size());
    for_blocks(values, [&](std::size_t begin, std::span<const float> block) {
      double squares = 0;
      for (const float value : block) squares += static_cast<double>(value) * value;
      std::fill_n(unit.begin() + static_cast<std::ptrdiff_t>(begin), block.size(),
                  std::sqrt(squares) / levels);
    });
    expect_unbiased("qsgd:" + std::to_string(levels), values, unit);
  }
}

TEST(Unbiased, TernGrad) {
  auto values = gradient(700);
  for (float& value : values) value = std::clamp(value, -0.03F, 0.03F);
  expect_unbiased("terngrad", values, std::vector<double>(values.size(), largest_of(values)));
}

// QSGD's lemma 3.1: E |Q(v) - v|² <= min(n / s², √n / s) |v|² for a bucket of n elements.
TEST(Unbiased, QsgdsVarianceIsBelowThePapersBound) {
  const auto values = gradient(512);
  double norm = 0;
  for (const float value : values) norm += static_cast<double>(value) * value;
  for (const int levels : {1, 4, 16, 64}) {
    const auto codec = make_codec("qsgd:" + std::to_string(levels));
    double error = 0;
    constexpr int kDraws = 200;
    for (int draw = 0; draw < kDraws; ++draw) {
      const auto got = sent(*codec, values, {.seed = 2, .step = draw, .subtree = 1, .parameter = 9});
      for (std::size_t i = 0; i < values.size(); ++i) error += std::pow(got[i] - values[i], 2) / kDraws;
    }
    EXPECT_LE(error, std::min(512.0 / (levels * levels), std::sqrt(512.0) / levels) * norm) << levels;
    EXPECT_GT(error, 0);
  }
}

}  // namespace
}  // namespace lockstep
