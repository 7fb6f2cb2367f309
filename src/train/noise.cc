#include "train/noise.h"

#include <c10/core/GradMode.h>

#include <numeric>
#include <utility>

#include "grad/lane_squares.h"

namespace lockstep {

double mean_square(Strategy& strategy) {
  const c10::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const Slice& slice : strategy.slices()) gradients.push_back(slice.gradient);
  std::vector<double> squares(gradients.size(), 0);
  strategy.join(gradients,
                [&](std::size_t i, const torch::Tensor& whole) { squares[i] = sum_of_squares(whole); });
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

void NoiseMeter::take(Strategy& strategy) {
  if (!on_) return;
  own_ = strategy.lane_squares();
  mean_square_ = mean_square(strategy);
}

std::optional<NoiseSample> NoiseMeter::finish(std::int64_t samples) {
  return noise_of_step(std::exchange(lanes_, {}), mean_square_, samples);
}

}  // namespace lockstep
