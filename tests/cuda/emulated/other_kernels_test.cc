// The models' kernels against f64: all but the norms, f32 and bf16, sizes that fill no tile. On the processor
// and on a GPU, as the norms (norm_kernels_test.cc).
#include <algorithm>
#include <limits>

#include "cuda/emulated/matrix.h"
#include "models/cuda/cross_entropy.h"
#include "models/cuda/linear.h"
#include "models/cuda/max_pool.h"

namespace lockstep::gpu {
namespace {

template <class T>
class OtherKernels : public KernelTest {};
using Types = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(OtherKernels, Types);

TYPED_TEST(OtherKernels, GeluWithItsBias) {
  using T = TypeParam;
  for (const Shape shape : {Shape{1, 8}, Shape{77, 48}, Shape{1500, 72}, Shape{33, 3072}}) {
    const auto [rows, columns] = shape;
    auto x = random_matrix<T>(rows, columns, 1);
    const auto dy = random_matrix<T>(rows, columns, 2);
    const float rare[] = {0.0f, -0.0f, 5.5f, -5.5f, 20.0f, -20.0f, 1e-20f};
    for (std::size_t i = 0; i < std::min<std::size_t>(std::size(rare), x.data.size()); ++i)
      x.data[i] = T(rare[i]);
    Matrix<T> y(rows, columns), dx(rows, columns), d_bias(1, columns), sums(1, columns);
    const ColumnTiles tiles = tiles_of({rows, columns}, kElement<T>);
    Vector<float> partial(static_cast<std::size_t>(tiles.chunks * columns),
                          std::numeric_limits<float>::quiet_NaN());
    gelu_forward(kElement<T>, tiles, x.data.data(), y.data.data(), {});
    gelu_backward({.element = kElement<T>,
                   .dy = dy.data.data(),
                   .x = x.data.data(),
                   .dx = dx.data.data(),
                   .d_bias = d_bias.data.data(),
                   .partial = partial.data()},
                  tiles, {});
    column_sums(kElement<T>, tiles, dx.data.data(), sums.data.data(), partial.data(), {});
    finish();
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const double v = x.at(r, c), up_to = 0.5 * std::erfc(-v / std::sqrt(2.0));
        const double density = std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
        // 1e-6: what the formula for 16 bits may miss by.
        expect_near<T>(v * up_to, y.at(r, c), 1e-6 / kError<T>, "y", r, c);
        expect_near<T>(dy.at(r, c) * (up_to + v * density), dx.at(r, c), 2e-6 / kError<T>, "dx", r, c);
        sum += dx.at(r, c);
      }
      expect_near<T>(sum, d_bias.at(0, c), std::sqrt(static_cast<double>(rows)), "d_bias", 0, c);
      EXPECT_EQ(d_bias.at(0, c), sums.at(0, c)) << "the same sum in the same order";
    }
  }
}

TYPED_TEST(OtherKernels, WovenHeads) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 301, kHeads = 3, kDepth = 16;
  const auto queries = random_matrix<T>(kRows, kHeads * kDepth, 1),
             keys = random_matrix<T>(kRows, kHeads * kDepth, 2),
             values = random_matrix<T>(kRows, kHeads * kDepth, 3);
  Matrix<T> woven(kRows, 3 * kHeads * kDepth), sums(1, 3 * kHeads * kDepth);
  const ColumnTiles tiles = tiles_of({kRows, woven.columns}, kElement<T>);
  Vector<float> partial(static_cast<std::size_t>(tiles.chunks * woven.columns));
  weave_heads({.element = kElement<T>,
               .depth = kDepth,
               .parts = {queries.data.data(), keys.data.data(), values.data.data()},
               .woven = woven.data.data(),
               .sums = sums.data.data(),
               .partial = partial.data()},
              tiles, {});
  finish();
  for (std::int64_t head = 0; head < kHeads; ++head)
    for (std::int64_t part = 0; part < 3; ++part)
      for (std::int64_t d = 0; d < kDepth; ++d) {
        const auto& from = part == 0 ? queries : part == 1 ? keys : values;
        const std::int64_t c = (head * 3 + part) * kDepth + d;
        double sum = 0;
        for (std::int64_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(woven.at(r, c), from.at(r, head * kDepth + d)) << r << " " << c;
          sum += woven.at(r, c);
        }
        expect_near<T>(sum, sums.at(0, c), 17, "sum", 0, c);
      }
}

TYPED_TEST(OtherKernels, CrossEntropy) {
  using T = TypeParam;
  for (const Shape shape : {Shape{1, 8}, Shape{6, 10}, Shape{5, 1000}, Shape{3, 9001}, Shape{3, 9008}}) {
    const auto [rows, classes] = shape;
    auto logits = random_matrix<T>(rows, classes, 1);
    for (T& value : logits.data) value = T(4 * static_cast<float>(number(value)));
    logits.data[1] = T(-INFINITY);
    Matrix<T> d_logits(rows, classes);
    Vector<std::int64_t> target;
    for (std::int64_t r = 0; r < rows; ++r) target.push_back(r == 2 ? -100 : (r * 7919 + 3) % classes);
    Vector<float> log_sum(static_cast<std::size_t>(rows)), losses(static_cast<std::size_t>(rows)), mean(2);
    cross_entropy_forward({.element = kElement<T>,
                           .rows = rows,
                           .classes = classes,
                           .logits = logits.data.data(),
                           .target = target.data(),
                           .log_sum = log_sum.data(),
                           .losses = losses.data(),
                           .mean = mean.data()},
                          {});
    const Vector<float> d_loss{3};
    cross_entropy_backward({.element = kElement<T>,
                            .rows = rows,
                            .classes = classes,
                            .logits = logits.data.data(),
                            .target = target.data(),
                            .log_sum = log_sum.data(),
                            .mean = mean.data(),
                            .d_loss = d_loss.data(),
                            .d_logits = d_logits.data.data()},
                           {});
    finish();
    double loss = 0;
    const auto count = static_cast<double>(rows > 2 ? rows - 1 : rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(logits.at(r, c));
      const std::int64_t own = target[static_cast<std::size_t>(r)];
      if (own >= 0) loss += (std::log(sum) - logits.at(r, own)) / count;
      for (std::int64_t c = 0; c < classes; ++c) {
        const double expected = own < 0 ? 0 : 3 * (std::exp(logits.at(r, c)) / sum - (c == own)) / count;
        expect_near<T>(expected, d_logits.at(r, c), own < 0 ? 0 : 1e-6 / kError<T>, "gradient", r, c);
      }
    }
    EXPECT_NEAR(loss, number(mean[0]), 1e-5 * loss);
  }
}

TYPED_TEST(OtherKernels, MaxPool) {
  using T = TypeParam;
  for (const PoolShape shape : {PoolShape{2, 7, 9, 16}, PoolShape{1, 8, 6, 8}, PoolShape{3, 1, 1, 8}}) {
    const auto [images, height, width, channels] = shape;
    const std::int64_t high = (height + 1) / 2, wide = (width + 1) / 2;
    const auto x = random_matrix<T>(images * height * width, channels, 1);
    const auto dy = random_matrix<T>(images * high * wide, channels, 2),
               more = random_matrix<T>(dy.rows, channels, 3);
    Matrix<T> y(dy.rows, channels), dx(x.rows, channels);
    Vector<std::uint8_t> chosen(y.data.size());
    max_pool_forward(kElement<T>, shape, x.data.data(), y.data.data(), chosen.data(), {});
    max_pool_backward(kElement<T>, shape, {dy.data.data(), more.data.data(), chosen.data(), dx.data.data()},
                      {});
    finish();
    std::vector<double> expected(dx.data.size());
    for (std::int64_t n = 0; n < images; ++n)
      for (std::int64_t r = 0; r < high; ++r)
        for (std::int64_t p = 0; p < wide; ++p)
          for (std::int64_t c = 0; c < channels; ++c) {
            std::int64_t best = -1;
            for (std::int64_t row = std::max<std::int64_t>(0, 2 * r - 1);
                 row <= std::min(height - 1, 2 * r + 1); ++row)
              for (std::int64_t at = std::max<std::int64_t>(0, 2 * p - 1);
                   at <= std::min(width - 1, 2 * p + 1); ++at) {
                const std::int64_t place = (n * height + row) * width + at;
                if (best < 0 || x.at(place, c) > x.at(best, c)) best = place;
              }
            const std::int64_t out = (n * high + r) * wide + p;
            ASSERT_EQ(y.at(out, c), x.at(best, c)) << n << " " << r << " " << p << " " << c;
            expected[static_cast<std::size_t>(best * channels + c)] += dy.at(out, c) + more.at(out, c);
          }
    for (std::int64_t r = 0; r < dx.rows; ++r)
      for (std::int64_t c = 0; c < channels; ++c)
        expect_near<T>(expected[static_cast<std::size_t>(r * channels + c)], dx.at(r, c), 0.5, "dx", r, c);
  }
}

using CrossEntropyKernel = KernelTest;
TEST_F(CrossEntropyKernel, ATargetThatIsNoClassIsLoud) {
  const auto logits = random_matrix<float>(2, 8, 1);
  for (const std::int64_t wrong : {std::int64_t{8}, std::int64_t{-1}}) {
    const Vector<std::int64_t> target{0, wrong};
    Vector<float> log_sum(2), losses(2), mean(2);
    cross_entropy_forward({.element = Element::f32,
                           .rows = 2,
                           .classes = 8,
                           .logits = logits.data.data(),
                           .target = target.data(),
                           .log_sum = log_sum.data(),
                           .losses = losses.data(),
                           .mean = mean.data()},
                          {});
    finish();
    EXPECT_TRUE(std::isnan(mean[0]));
  }
}

}  // namespace
}  // namespace lockstep::gpu
