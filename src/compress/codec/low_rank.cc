// Products with few vectors: see low_rank.h. All of up to four vectors in one pass over the matrix, of which
// several rows are at hand at a time; sums are added to in the order that a loop over one vector after the
// other would have, so how many go together changes no bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/codec/low_rank.cc"
// clang-format off: foreach_target.h must come before highway.h
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "compress/codec/low_rank.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::compress::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowFloats = hn::CappedTag<float, 16>;
constexpr std::size_t kSums = 16;     // a row's product is so many sums side by side, added in pairs at last
constexpr std::size_t kTogether = 4;  // vectors in one pass
constexpr std::size_t kRowsAtHand = 8;

// The products of one row with `kVectors` vectors.
template <std::size_t kVectors>
HWY_INLINE void row_times(const float* row, const float* q, std::size_t n, float* out, std::size_t stride) {
  const RowFloats d;
  constexpr std::size_t kParts = kSums / hn::MaxLanes(RowFloats());
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<RowFloats> sums[kVectors][kParts];
  for (std::size_t c = 0; c < kVectors; ++c)
    for (std::size_t k = 0; k < kParts; ++k) sums[c][k] = hn::Zero(d);
  std::size_t j = 0;
  for (; j + kSums <= n; j += kSums)
    for (std::size_t k = 0; k < kParts; ++k) {
      const auto x = hn::LoadU(d, row + j + k * lanes);
      for (std::size_t c = 0; c < kVectors; ++c)
        sums[c][k] = hn::Add(sums[c][k], hn::Mul(x, hn::LoadU(d, q + c * n + j + k * lanes)));
    }
  for (std::size_t c = 0; c < kVectors; ++c) {
    HWY_ALIGN float all[kSums];
    for (std::size_t k = 0; k < kParts; ++k) hn::StoreU(sums[c][k], d, all + k * lanes);
    for (std::size_t e = j; e < n; ++e) all[e - j] += row[e] * q[c * n + e];
    for (std::size_t half = kSums / 2; half > 0; half /= 2)
      for (std::size_t k = 0; k < half; ++k) all[k] += all[k + half];
    out[c * stride] = all[0];
  }
}

template <std::size_t kVectors>
void times_of(const Matrix& m, const float* q, float* out) {
  for (std::size_t i = 0; i < m.rows; ++i)
    row_times<kVectors>(m.data + i * m.columns, q, m.columns, out + i, m.rows);
}

// `kRows` rows, times their factors, on top of the sums of every column.
template <std::size_t kVectors, std::size_t kRows>
HWY_INLINE void add_rows(const float* rows, const float* p, std::size_t p_stride, std::size_t n, float* out) {
  const RowFloats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    hn::Vec<RowFloats> sums[kVectors];
    for (std::size_t c = 0; c < kVectors; ++c) sums[c] = hn::LoadU(d, out + c * n + j);
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto x = hn::LoadU(d, rows + r * n + j);
      for (std::size_t c = 0; c < kVectors; ++c)
        sums[c] = hn::Add(sums[c], hn::Mul(x, hn::Set(d, p[c * p_stride + r])));
    }
    for (std::size_t c = 0; c < kVectors; ++c) hn::StoreU(sums[c], d, out + c * n + j);
  }
  for (; j < n; ++j)
    for (std::size_t c = 0; c < kVectors; ++c)
      for (std::size_t r = 0; r < kRows; ++r) out[c * n + j] += rows[r * n + j] * p[c * p_stride + r];
}

template <std::size_t kVectors>
void transposed_of(const Matrix& m, const float* p, float* out) {
  std::fill_n(out, kVectors * m.columns, 0.0f);
  std::size_t i = 0;
  for (; i + kRowsAtHand <= m.rows; i += kRowsAtHand)
    add_rows<kVectors, kRowsAtHand>(m.data + i * m.columns, p + i, m.rows, m.columns, out);
  for (; i < m.rows; ++i) add_rows<kVectors, 1>(m.data + i * m.columns, p + i, m.rows, m.columns, out);
}

// On top of what is there, or of zeros.
template <std::size_t kVectors>
void expand_of(const float* p, const float* q, const Matrix& m, float* to, bool adds) {
  const RowFloats d;
  const std::size_t lanes = hn::Lanes(d), n = m.columns;
  for (std::size_t i = 0; i < m.rows; ++i, to += n) {
    std::size_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      auto sum = adds ? hn::LoadU(d, to + j) : hn::Zero(d);
      for (std::size_t c = 0; c < kVectors; ++c)
        sum = hn::Add(sum, hn::Mul(hn::LoadU(d, q + c * n + j), hn::Set(d, p[c * m.rows + i])));
      hn::StoreU(sum, d, to + j);
    }
    for (; j < n; ++j) {
      float sum = adds ? to[j] : 0.0f;
      for (std::size_t c = 0; c < kVectors; ++c) sum += q[c * n + j] * p[c * m.rows + i];
      to[j] = sum;
    }
  }
}

void times_here(const Matrix& m, const float* q, std::size_t rank, float* out) {
  for (std::size_t c = 0; c < rank; c += kTogether, q += kTogether * m.columns, out += kTogether * m.rows)
    switch (std::min(rank - c, kTogether)) {
      case 1: times_of<1>(m, q, out); break;
      case 2: times_of<2>(m, q, out); break;
      case 3: times_of<3>(m, q, out); break;
      default: times_of<4>(m, q, out);
    }
}

void transposed_here(const Matrix& m, const float* p, std::size_t rank, float* out) {
  for (std::size_t c = 0; c < rank; c += kTogether, p += kTogether * m.rows, out += kTogether * m.columns)
    switch (std::min(rank - c, kTogether)) {
      case 1: transposed_of<1>(m, p, out); break;
      case 2: transposed_of<2>(m, p, out); break;
      case 3: transposed_of<3>(m, p, out); break;
      default: transposed_of<4>(m, p, out);
    }
}

void expand_here(const float* p, const float* q, std::size_t rank, const Matrix& m, float* to, bool adds) {
  for (std::size_t c = 0; c < rank; c += kTogether, p += kTogether * m.rows, q += kTogether * m.columns)
    switch (std::min(rank - c, kTogether)) {
      case 1: expand_of<1>(p, q, m, to, adds || c > 0); break;
      case 2: expand_of<2>(p, q, m, to, adds || c > 0); break;
      case 3: expand_of<3>(p, q, m, to, adds || c > 0); break;
      default: expand_of<4>(p, q, m, to, adds || c > 0);
    }
}

}  // namespace lockstep::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::compress {
namespace {

double dot_f64(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

HWY_EXPORT(times_here);
HWY_EXPORT(transposed_here);
HWY_EXPORT(expand_here);

void times(const Matrix& m, std::span<const float> q, std::size_t rank, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(times_here)(m, q.data(), rank, out.data());
}

void transposed_times(const Matrix& m, std::span<const float> p, std::size_t rank, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(transposed_here)(m, p.data(), rank, out.data());
}

void expand_add(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
                std::size_t columns) {
  const Matrix form{.rows = m.size() / columns, .columns = columns};
  HWY_DYNAMIC_DISPATCH(expand_here)(p.data(), q.data(), rank, form, m.data(), true);
}

void expand(std::span<const float> p, std::span<const float> q, std::size_t rank, std::span<float> m,
            std::size_t columns) {
  const Matrix form{.rows = m.size() / columns, .columns = columns};
  HWY_DYNAMIC_DISPATCH(expand_here)(p.data(), q.data(), rank, form, m.data(), false);
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
#endif
