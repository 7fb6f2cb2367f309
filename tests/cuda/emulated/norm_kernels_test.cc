// The models' kernels against f64: norms, f32 and bf16, sizes that fill no tile. On the processor
// (emulator.h), and on a GPU without libtorch, so that the tools that look for races see kernels of ours
// alone.
#include <algorithm>
#include <limits>

#include "cuda/emulated/matrix.h"
#include "models/cuda/add_norm.h"
#include "models/cuda/batch_norm.h"

namespace lockstep::gpu {
namespace {

template <class T>
class NormKernels : public KernelTest {};
using Types = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(NormKernels, Types);

TYPED_TEST(NormKernels, BatchNormSumsAndReLU) {
  using T = TypeParam;
  for (const Shape shape : {Shape{7, 8}, Shape{333, 48}, Shape{900, 64}, Shape{20, 2048}, Shape{7000, 8}})
    for (const auto activation : {Activation::none, Activation::relu, Activation::add_relu})
      for (const bool twice : {false, true}) {
        const auto [rows, columns] = shape;
        if (twice && activation != Activation::add_relu) continue;
        const auto x = random_matrix<T>(rows, columns, 1, 3), residual = random_matrix<T>(rows, columns, 2);
        const auto dy = random_matrix<T>(rows, columns, 3), more = random_matrix<T>(rows, columns, 4);
        const auto weight = random_matrix<float>(1, columns, 5, 1),
                   bias = random_matrix<float>(1, columns, 6);
        Matrix<T> y(rows, columns), dx(rows, columns), d_residual(rows, columns);
        Matrix<float> mean(1, columns), variance(1, columns), kept(4, columns), d_weight(1, columns),
            d_bias(1, columns), coefficients(2, columns);
        Vector<std::int64_t> batches{4};
        const ColumnTiles tiles = tiles_of({rows, columns}, kElement<T>);
        Vector<float> partial(static_cast<std::size_t>(2 * tiles.chunks * columns),
                              std::numeric_limits<float>::quiet_NaN());
        Vector<std::uint8_t> mask(static_cast<std::size_t>(rows * columns / vector_width(kElement<T>)), 0xff);
        const NormSaved saved{kept.data.data(), columns};
        batch_norm_statistics(kElement<T>, tiles, x.data.data(), {weight.data.data(), bias.data.data(), 1e-5},
                              {mean.data.data(), variance.data.data(), batches.data(), 0.25}, saved,
                              partial.data(), {});
        batch_norm_apply({.element = kElement<T>,
                          .activation = activation,
                          .x = x.data.data(),
                          .residual = residual.data.data(),
                          .y = y.data.data(),
                          .mask = mask.data()},
                         tiles, saved, {});
        batch_norm_backward({.element = kElement<T>,
                             .activation = activation,
                             .dy = dy.data.data(),
                             .dy_more = twice ? more.data.data() : nullptr,
                             .x = x.data.data(),
                             .mask = mask.data(),
                             .d_residual = d_residual.data.data(),
                             .dx = dx.data.data(),
                             .d_weight = d_weight.data.data(),
                             .d_bias = d_bias.data.data(),
                             .coefficients = coefficients.data.data(),
                             .partial = partial.data()},
                            tiles, saved, {});
        finish();
        EXPECT_EQ(batches[0], 5);
        const auto count = static_cast<double>(rows);
        for (std::int64_t c = 0; c < columns; ++c) {
          double m = 0, v = 0, plain = 0, product = 0;
          for (std::int64_t r = 0; r < rows; ++r) m += x.at(r, c) / count;
          for (std::int64_t r = 0; r < rows; ++r) v += (x.at(r, c) - m) * (x.at(r, c) - m) / count;
          expect_near<float>(0.25 * m, number(mean.data[static_cast<std::size_t>(c)]), 1, "mean", 0, c);
          expect_near<float>(0.25 * v * count / (count - 1),
                             number(variance.data[static_cast<std::size_t>(c)]), 1, "variance", 0, c);
          const double inverse = 1 / std::sqrt(v + 1e-5);
          std::vector<double> g(static_cast<std::size_t>(rows));
          for (std::int64_t r = 0; r < rows; ++r) {
            const double normal = (x.at(r, c) - m) * inverse;
            double value = normal * weight.at(0, c) + bias.at(0, c);
            if (activation == Activation::add_relu) value += residual.at(r, c);
            double& gradient = g[static_cast<std::size_t>(r)];
            gradient = dy.at(r, c) + (twice ? more.at(r, c) : 0);
            // Near 0 either side is right.
            const bool near = std::abs(value) < 1e-4;
            if (activation != Activation::none && (near ? y.at(r, c) == 0 : value <= 0)) value = gradient = 0;
            expect_near<T>(value, y.at(r, c), 2, "y", r, c);
            if (activation == Activation::add_relu)
              expect_near<T>(gradient, d_residual.at(r, c), 0, "d_residual", r, c);
            plain += gradient;
            product += gradient * normal;
          }
          // 16-bit sums of two gradients are rounded before they are added up.
          const double error = (twice ? kError<T> : kError<float>)*std::sqrt(count);
          EXPECT_NEAR(plain, number(d_bias.data[static_cast<std::size_t>(c)]),
                      4 * error + 1e-6 * std::abs(plain));
          EXPECT_NEAR(product, number(d_weight.data[static_cast<std::size_t>(c)]),
                      4 * error + 1e-6 * std::abs(product));
          for (std::int64_t r = 0; r < rows; ++r) {
            const double normal = (x.at(r, c) - m) * inverse;
            const double expected =
                weight.at(0, c) * inverse *
                (g[static_cast<std::size_t>(r)] - plain / count - normal * product / count);
            expect_near<T>(expected, dx.at(r, c), 4 * inverse * (1 + std::abs(weight.at(0, c))), "dx", r, c);
          }
        }
      }
}

TYPED_TEST(NormKernels, ResidualSumWithLayerNorm) {
  using T = TypeParam;
  for (const Shape shape : {Shape{1, 8}, Shape{5, 40}, Shape{1700, 16}, Shape{67, 768}, Shape{9, 1024}})
    for (const bool with_branch : {true, false}) {
      const auto [rows, columns] = shape;
      const auto x = random_matrix<T>(rows, columns, 1, 2), branch = random_matrix<T>(rows, columns, 2);
      const auto branch_bias = random_matrix<T>(1, columns, 3), weight = random_matrix<T>(1, columns, 4, 1),
                 bias = random_matrix<T>(1, columns, 5);
      const auto d_sum = random_matrix<T>(rows, columns, 6), d_normed = random_matrix<T>(rows, columns, 7);
      Matrix<T> sum(rows, columns), normed(rows, columns), dx(rows, columns), d_weight(1, columns),
          d_bias(1, columns), d_branch_bias(1, columns);
      Vector<float> mean(static_cast<std::size_t>(rows)), inverse(static_cast<std::size_t>(rows));
      add_norm_forward({.element = kElement<T>,
                        .shape = {rows, columns},
                        .x = x.data.data(),
                        .branch = with_branch ? branch.data.data() : nullptr,
                        .branch_bias = with_branch ? branch_bias.data.data() : nullptr,
                        .weight = weight.data.data(),
                        .bias = bias.data.data(),
                        .epsilon = 1e-5,
                        .sum = sum.data.data(),
                        .normed = normed.data.data(),
                        .mean = mean.data(),
                        .inverse = inverse.data()},
                       {});
      Vector<float> partial(static_cast<std::size_t>(3 * add_norm_chunks(rows) * columns),
                            std::numeric_limits<float>::quiet_NaN());
      add_norm_backward({.element = kElement<T>,
                         .shape = {rows, columns},
                         .d_sum = with_branch ? d_sum.data.data() : nullptr,
                         .d_normed = d_normed.data.data(),
                         .sum = with_branch ? sum.data.data() : x.data.data(),
                         .weight = weight.data.data(),
                         .mean = mean.data(),
                         .inverse = inverse.data(),
                         .dx = dx.data.data(),
                         .d_weight = d_weight.data.data(),
                         .d_bias = d_bias.data.data(),
                         .d_branch_bias = with_branch ? d_branch_bias.data.data() : nullptr,
                         .partial = partial.data()},
                        {});
      finish();
      std::vector<double> by_weight(static_cast<std::size_t>(columns)), by_bias = by_weight,
                                                                        by_branch = by_weight;
      for (std::int64_t r = 0; r < rows; ++r) {
        // From the sum as it was rounded, which is what the norm is of.
        std::vector<double> s(static_cast<std::size_t>(columns));
        double m = 0, v = 0, mean_g = 0, mean_product = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          double& value = s[static_cast<std::size_t>(c)];
          value = with_branch ? sum.at(r, c) : x.at(r, c);
          if (with_branch)
            expect_near<T>(x.at(r, c) + branch.at(r, c) + branch_bias.at(0, c), value, 0.1, "sum", r, c);
          m += value / static_cast<double>(columns);
        }
        for (const double value : s) v += (value - m) * (value - m) / static_cast<double>(columns);
        const double scale = 1 / std::sqrt(v + 1e-5);
        for (std::int64_t c = 0; c < columns; ++c) {
          const double normal = (s[static_cast<std::size_t>(c)] - m) * scale;
          expect_near<T>(normal * weight.at(0, c) + bias.at(0, c), normed.at(r, c), 1, "normed", r, c);
          mean_g += d_normed.at(r, c) * weight.at(0, c) / static_cast<double>(columns);
          mean_product += d_normed.at(r, c) * weight.at(0, c) * normal / static_cast<double>(columns);
          by_weight[static_cast<std::size_t>(c)] += d_normed.at(r, c) * normal;
          by_bias[static_cast<std::size_t>(c)] += d_normed.at(r, c);
          by_branch[static_cast<std::size_t>(c)] += dx.at(r, c);
        }
        for (std::int64_t c = 0; c < columns; ++c) {
          const double normal = (s[static_cast<std::size_t>(c)] - m) * scale;
          const double expected =
              (with_branch ? d_sum.at(r, c) : 0) +
              scale * (d_normed.at(r, c) * weight.at(0, c) - mean_g - normal * mean_product);
          expect_near<T>(expected, dx.at(r, c), 4, "dx", r, c);
        }
      }
      const double more = std::sqrt(static_cast<double>(rows));
      for (std::int64_t c = 0; c < columns; ++c) {
        expect_near<T>(by_weight[static_cast<std::size_t>(c)], d_weight.at(0, c), more, "d_weight", 0, c);
        expect_near<T>(by_bias[static_cast<std::size_t>(c)], d_bias.at(0, c), more, "d_bias", 0, c);
        if (with_branch)
          expect_near<T>(by_branch[static_cast<std::size_t>(c)], d_branch_bias.at(0, c), more,
                         "d_branch_bias", 0, c);
      }
    }
}

}  // namespace
}  // namespace lockstep::gpu
