#include "grad/lane_squares.h"

#include <array>
#include <numeric>

namespace lockstep {
namespace {

// Eight sums side by side, so that the compiler may add them with one instruction; joined in pairs.
template <class T>
double squares_of(const T* x, std::int64_t count) {
  std::array<double, 8> sums{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::size_t k = 0; k < 8; ++k) {
      const auto value = static_cast<double>(x[i + static_cast<std::int64_t>(k)]);
      sums[k] += value * value;
    }
  for (std::size_t k = 0; i < count; ++i, ++k)
    sums[k] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (std::size_t half = 4; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

}  // namespace

double sum_of_squares(const torch::Tensor& tensor) {
  const torch::Tensor dense =
      (tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous()).detach().cpu();
  if (dense.scalar_type() == torch::kFloat64) return squares_of(dense.data_ptr<double>(), dense.numel());
  return squares_of(dense.to(torch::kFloat32).data_ptr<float>(), dense.numel());
}

void LaneSquares::begin_lane(int position) {
  squares_.resize(static_cast<std::size_t>(position));
  squares_.emplace_back(parameters_, 0.0);
}

void LaneSquares::add(std::size_t parameter, const torch::Tensor& gradient) {
  squares_.back()[parameter] = sum_of_squares(gradient);
}

std::vector<double> LaneSquares::lanes() const {
  std::vector<double> sums;
  for (const std::vector<double>& lane : squares_)
    sums.push_back(std::accumulate(lane.begin(), lane.end(), 0.0));
  return sums;
}

}  // namespace lockstep
