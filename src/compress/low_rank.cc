#include "compress/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::compress {
namespace {

constexpr std::size_t kSide =
    16;  // sums side by side, so that the compiler may add them with few instructions

float dot(const float* a, const float* b, std::size_t n) {
  std::array<float, kSide> sums{};
  std::size_t i = 0;
  for (; i + kSide <= n; i += kSide)
    for (std::size_t k = 0; k < kSide; ++k) sums[k] += a[i + k] * b[i + k];
  for (std::size_t k = 0; i < n; ++i, ++k) sums[k] += a[i] * b[i];
  for (std::size_t half = kSide / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

double dot_f64(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

void times(const Matrix& m, std::span<const float> q, std::size_t rank, std::span<float> out) {
  for (std::size_t i = 0; i < m.rows; ++i)
    for (std::size_t c = 0; c < rank; ++c)
      out[c * m.rows + i] = dot(m.data + i * m.columns, q.data() + c * m.columns, m.columns);
}

void transposed_times(const Matrix& m, std::span<const float> p, std::size_t rank, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  for (std::size_t i = 0; i < m.rows; ++i)
    for (std::size_t c = 0; c < rank; ++c) {
      const float factor = p[c * m.rows + i];
      const float* const row = m.data + i * m.columns;
      float* const to = out.data() + c * m.columns;
      for (std::size_t j = 0; j < m.columns; ++j) to[j] += row[j] * factor;
    }
}

void expand_add(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
                std::size_t columns) {
  const std::size_t rows = m.size() / columns;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t c = 0; c < rank; ++c) {
      const float factor = p[c * rows + i];
      const float* const from = q.data() + c * columns;
      float* const to = m.data() + i * columns;
      for (std::size_t j = 0; j < columns; ++j) to[j] += from[j] * factor;
    }
}

void expand(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
            std::size_t columns) {
  std::fill(m.begin(), m.end(), 0.0f);
  expand_add(p, q, rank, m, columns);
}

void orthonormalise(std::span<float> p, std::size_t rank) {
  const std::size_t n = p.size() / rank;
  for (std::size_t c = 0; c < rank; ++c) {
    float* const own = p.data() + c * n;
    const double before = std::sqrt(dot_f64(own, own, n));
    for (std::size_t d = 0; d < c; ++d) {
      const float* const other = p.data() + d * n;
      const auto along = static_cast<float>(dot_f64(own, other, n));
      for (std::size_t i = 0; i < n; ++i) own[i] -= along * other[i];
    }
    const double norm = std::sqrt(dot_f64(own, own, n));
    const auto factor = norm > 1e-6 * before ? static_cast<float>(1 / norm) : 0.0f;
    for (std::size_t i = 0; i < n; ++i) own[i] *= factor;
  }
}

}  // namespace lockstep::compress
