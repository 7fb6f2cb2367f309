// How large a batch is too large: the gradient noise scale (McCandlish et al. 2018, "An Empirical Model of
// Large-Batch Training"), measured from the lanes of ordinary steps.
//
// A gradient over b examples has |g|² = |G|² + tr Σ / b on average: G is what all examples together would
// give, Σ the covariance of one example's. Every lane has such a gradient, and so has the step, their mean,
// with a larger b. So each step gives both unknowns, without bias, where lanes differ in size too:
//
//   tr Σ = B · (Σ wᵢ|gᵢ|² / Σ wᵢ − |g|²) / (lanes − 1)        |G|² = |g|² − tr Σ / B
//
// B is the step's examples, wᵢ a lane's share in the mean g. A single step's may be negative. The noise
// scale, the critical batch, is tr Σ / |G|²: the ratio of their means over steps, as the mean of ratios would
// be biased. At this batch a training run takes twice the fewest steps, and twice the fewest examples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// A lane's share in the step's mean, and |its gradient|² (Strategy::lane_squares).
struct LaneSquare {
  double weight = 0;
  double square = 0;
};

// What one step tells.
struct NoiseSample {
  double gradient_square = 0;  // |G|²
  double trace = 0;            // tr Σ, of one example's gradient
};

// `mean_square`: |gradient|² of the step, over `samples` examples. Sums are taken in the order of lanes, so
// that the same lanes give the same numbers. Nothing where fewer than two lanes weigh anything, or something
// is not finite.
std::optional<NoiseSample> noise_of_step(std::span<const LaneSquare> lanes, double mean_square,
                                         std::int64_t samples);

struct NoiseFigures {
  double scale = 0;  // examples; infinity where no gradient shows through the noise
  // Where it lies with a probability of 95 %; high may be infinity. NaN of fewer than kNoiseBlocks steps.
  double low = 0;
  double high = 0;
  std::int64_t steps = 0;  // that this is of: the later half of those so far
};

// Steps follow each other and are not independent. So the uncertainty comes from this many blocks of
// consecutive steps, whose means nearly are: by Fieller's theorem, which knows that a ratio has no upper
// bound where its denominator may be zero. What the scale changed by meanwhile is part of it.
inline constexpr int kNoiseBlocks = 10;

// The noise scale as training goes.
class NoiseScale {
 public:
  void add(const NoiseSample& sample);
  std::int64_t steps() const { return static_cast<std::int64_t>(sums_.size()) - 1; }
  // Of the later half of the steps so far, since the scale grows while a model learns. Nothing of no step.
  std::optional<NoiseFigures> figures() const;

 private:
  // With what rounding took from it: a step that explodes must not swallow those after it.
  struct Sum {
    double sum = 0;
    double rest = 0;
    Sum operator+(double x) const;
    double operator-(const Sum& before) const { return (sum - before.sum) + (rest - before.rest); }
  };
  struct Sums {
    Sum gradient_square, trace;
  };
  NoiseSample mean(std::size_t begin, std::size_t end) const;

  std::vector<Sums> sums_ = {{}};  // [i]: of the first i steps
};

// Of a run, from its folder's noise.csv as far as it is there. Throws UsageError where it is none of ours.
NoiseScale read_noise(const std::filesystem::path& folder);

// "412 (280 to 790)", "above 300", "412 (few steps)"
std::string to_string(const NoiseFigures& figures);

}  // namespace lockstep
