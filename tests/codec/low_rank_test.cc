// Products with few vectors have the bits of plain loops, whatever the instruction set, the sizes, and how
// many vectors go together.
#include "compress/codec/low_rank.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "codec/targets.h"
#include "codec/values.h"

namespace lockstep {
namespace {

using namespace testing;
using compress::Matrix;

struct Sizes {
  std::size_t rows, columns, rank;
};

constexpr Sizes kForms[] = {{1, 1, 1},   {3, 5, 2},    {8, 16, 4},   {17, 33, 3},
                            {31, 47, 5}, {64, 100, 8}, {100, 64, 9}, {129, 1, 1}};

// Sixteen sums side by side, the last elements to the first of them, and pairs of them at last.
std::vector<float> plain_times(const Matrix& m, const std::vector<float>& q, std::size_t rank) {
  std::vector<float> out(rank * m.rows);
  for (std::size_t c = 0; c < rank; ++c)
    for (std::size_t i = 0; i < m.rows; ++i) {
      std::array<float, 16> sums{};
      for (std::size_t j = 0; j < m.columns; ++j)
        sums[j % 16] += m.data[i * m.columns + j] * q[c * m.columns + j];
      for (std::size_t half = 8; half > 0; half /= 2)
        for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
      out[c * m.rows + i] = sums[0];
    }
  return out;
}

std::vector<float> plain_transposed(const Matrix& m, const std::vector<float>& p, std::size_t rank) {
  std::vector<float> out(rank * m.columns);
  for (std::size_t c = 0; c < rank; ++c)
    for (std::size_t j = 0; j < m.columns; ++j)
      for (std::size_t i = 0; i < m.rows; ++i)
        out[c * m.columns + j] += m.data[i * m.columns + j] * p[c * m.rows + i];
  return out;
}

void plain_expand_add(const std::vector<float>& p, const std::vector<float>& q, std::size_t rank,
                      std::vector<float>& m, std::size_t columns) {
  const std::size_t rows = m.size() / columns;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t c = 0; c < rank; ++c) m[i * columns + j] += q[c * columns + j] * p[c * rows + i];
}

void expect_same_bits(const std::vector<float>& found, const std::vector<float>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
}

TEST(LowRank, ProductsHaveTheBitsOfPlainLoopsOnEveryInstructionSet) {
  const std::vector<std::int64_t> targets = runnable_targets();
  ASSERT_FALSE(targets.empty());
  for (const std::int64_t target : targets) {
    use_targets(target);
    for (const auto& [rows, columns, rank] : kForms) {
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + ": " + std::to_string(rows) + " × " +
                   std::to_string(columns) + ", rank " + std::to_string(rank));
      const std::vector<float> values = gradient(rows * columns, 1), p = gradient(rows * rank, 2),
                               q = gradient(columns * rank, 3);
      const Matrix m{values.data(), rows, columns};
      std::vector<float> of_rows(rows * rank), of_columns(columns * rank);
      compress::times(m, q, rank, of_rows);
      expect_same_bits(of_rows, plain_times(m, q, rank));
      compress::transposed_times(m, p, rank, of_columns);
      expect_same_bits(of_columns, plain_transposed(m, p, rank));

      std::vector<float> wanted(rows * columns), found(rows * columns, 7.0f);
      plain_expand_add(p, q, rank, wanted, columns);
      compress::expand(p, q, rank, found, columns);
      expect_same_bits(found, wanted);
      found = wanted = values;
      plain_expand_add(p, q, rank, wanted, columns);
      compress::expand_add(p, q, rank, found, columns);
      expect_same_bits(found, wanted);
    }
  }
  use_targets(0);
}

}  // namespace
}  // namespace lockstep
