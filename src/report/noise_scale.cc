#include "lockstep/report/noise_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/report/csv.h"
#include "report/table.h"

namespace lockstep {
namespace {

constexpr double kStudent = 2.262;  // t of kNoiseBlocks − 1 degrees of freedom, 95 % on both sides together
static_assert(kNoiseBlocks == 10);
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Interval {
  double low = 0;
  double high = INFINITY;
};

// The ratios r for which a mean of trace − r · gradient_square is not told apart from zero.
Interval fieller(const std::array<NoiseSample, kNoiseBlocks>& blocks, const NoiseSample& mean) {
  double trace_variance = 0, square_variance = 0, covariance = 0;
  for (const NoiseSample& block : blocks) {
    const double trace = block.trace - mean.trace, square = block.gradient_square - mean.gradient_square;
    trace_variance += trace * trace;
    square_variance += square * square;
    covariance += trace * square;
  }
  // t² times the variances of the means.
  const double factor = kStudent * kStudent / (kNoiseBlocks * (kNoiseBlocks - 1));
  const double a = mean.gradient_square * mean.gradient_square - factor * square_variance;
  const double half_b = mean.gradient_square * mean.trace - factor * covariance;
  const double c = mean.trace * mean.trace - factor * trace_variance;
  const double root = std::sqrt(std::max(0.0, half_b * half_b - a * c));
  if (a > 0 && mean.gradient_square > 0)
    return {std::max(0.0, (half_b - root) / a), std::max(0.0, (half_b + root) / a)};
  // |G|² may be nothing: no upper bound, and a lower one where tr Σ is certain.
  if (a < 0 && c > 0 && mean.trace > 0) return {std::max(0.0, (half_b - root) / a), INFINITY};
  return {};
}

double ratio(const NoiseSample& mean) {
  if (!(mean.trace > 0)) return 0;
  return mean.gradient_square > 0 ? mean.trace / mean.gradient_square : INFINITY;
}

}  // namespace

std::optional<NoiseSample> noise_of_step(std::span<const LaneSquare> lanes, double mean_square,
                                         std::int64_t samples) {
  double squares = 0, weight = 0;
  int count = 0;
  for (const LaneSquare& lane : lanes) {
    if (!(lane.weight > 0)) continue;
    squares += lane.weight * lane.square;
    weight += lane.weight;
    ++count;
  }
  if (count < 2 || samples < 1) return std::nullopt;
  const auto batch = static_cast<double>(samples);
  NoiseSample sample;
  sample.trace = batch * (squares / weight - mean_square) / (count - 1);
  sample.gradient_square = mean_square - sample.trace / batch;
  if (!std::isfinite(sample.trace) || !std::isfinite(sample.gradient_square)) return std::nullopt;
  return sample;
}

// Knuth's exact sum of two numbers.
NoiseScale::Sum NoiseScale::Sum::operator+(double x) const {
  const double whole = sum + x, of_x = whole - sum;
  return {whole, rest + ((sum - (whole - of_x)) + (x - of_x))};
}

void NoiseScale::add(const NoiseSample& sample) {
  const Sums& before = sums_.back();
  sums_.push_back({before.gradient_square + sample.gradient_square, before.trace + sample.trace});
}

NoiseSample NoiseScale::mean(std::size_t begin, std::size_t end) const {
  const auto count = static_cast<double>(end - begin);
  return {(sums_[end].gradient_square - sums_[begin].gradient_square) / count,
          (sums_[end].trace - sums_[begin].trace) / count};
}

std::optional<NoiseFigures> NoiseScale::figures() const {
  const std::size_t end = sums_.size() - 1, begin = end / 2;
  if (end == 0) return std::nullopt;
  const NoiseSample all = mean(begin, end);
  NoiseFigures figures{.scale = ratio(all),
                       .low = kUnknown,
                       .high = kUnknown,
                       .steps = static_cast<std::int64_t>(end - begin)};
  if (end - begin < kNoiseBlocks) return figures;
  std::array<NoiseSample, kNoiseBlocks> blocks;
  NoiseSample middle;  // the blocks' own mean: they may differ by a step
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto edge = [&](std::size_t k) { return begin + (end - begin) * k / blocks.size(); };
    blocks[i] = mean(edge(i), edge(i + 1));
    middle.gradient_square += blocks[i].gradient_square / kNoiseBlocks;
    middle.trace += blocks[i].trace / kNoiseBlocks;
  }
  const Interval interval = fieller(blocks, middle);
  figures.low = std::min(interval.low, figures.scale);
  figures.high = std::max(interval.high, figures.scale);
  return figures;
}

NoiseScale read_noise(const std::filesystem::path& folder) {
  NoiseScale noise;
  const std::filesystem::path file = folder / "noise.csv";
  if (!std::filesystem::exists(file)) return noise;
  const CsvTable table = read_csv(file);
  const std::vector<double> squares = table.numbers("gradient_square"), traces = table.numbers("trace");
  if (squares.size() != table.rows.size() || traces.size() != table.rows.size())
    throw UsageError(fmt::format("{}: has no columns gradient_square and trace", file.string()));
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (!std::isfinite(squares[i]) || !std::isfinite(traces[i]))
      throw UsageError(fmt::format("{}: row {} has no numbers", file.string(), i + 1));
    noise.add({squares[i], traces[i]});
  }
  return noise;
}

std::string to_string(const NoiseFigures& f) {
  if (!std::isfinite(f.scale))
    return std::isnan(f.low) ? "beyond measure (few steps)" : "above " + format_number(f.low);
  const std::string range = std::isnan(f.low) ? "few steps"
                            : std::isfinite(f.high)
                                ? fmt::format("{} to {}", format_number(f.low), format_number(f.high))
                                : fmt::format("{} or more", format_number(f.low));
  return fmt::format("{} ({})", format_number(f.scale), range);
}

}  // namespace lockstep
