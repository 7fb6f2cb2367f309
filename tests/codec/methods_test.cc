// Each method against its definition in f64 (reference.h).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>

#include "codec/reference.h"
#include "codec/values.h"

namespace lockstep {
namespace {

using namespace testing;

TEST(Int8, IsTheNearestOf255LevelsOfEachBlock) {
  const auto codec = make_codec("int8");
  for (const std::size_t size : kSizes) {
    const auto values = gradient(size);
    const auto got = sent(*codec, values);
    std::size_t ties = 0;
    for_blocks(values, [&](std::size_t begin, std::span<const float> block) {
      const double step = largest_of(block) / 127;
      for (std::size_t i = 0; i < block.size(); ++i) {
        const double exact = step == 0 ? 0 : block[i] / step;
        // What f32 sees as a tie, or on its other side, may go either way.
        const bool tie = std::fabs(std::fabs(exact - std::floor(exact)) - 0.5) < 1e-4;
        ties += tie ? 1 : 0;
        const double expected = (tie ? std::round(got[begin + i] / step) : std::nearbyint(exact)) * step;
        ASSERT_NEAR(got[begin + i], expected, step * 2e-5)
            << size << ": element " << begin + i << " is " << block[i];
        ASSERT_LE(std::fabs(got[begin + i] - block[i]), step * 0.5001);
      }
    });
    EXPECT_LE(ties, size / 500);
  }
}

void expect_fp8(const std::string& name, const std::vector<double>& numbers) {
  const auto codec = make_codec(name);
  for (const std::size_t size : kSizes) {
    const auto values = gradient(size);
    const auto got = sent(*codec, values);
    const auto expected = reference_fp8(values, numbers);
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_EQ(static_cast<double>(got[i]), expected[i])
          << name << ", " << size << ": element " << i << " is " << values[i];
  }
}

TEST(Fp8, IsTheNearestNumberOfTheType) {
  const auto e4m3 = fp8_numbers(4, 3, 7, 448);
  const auto e5m2 = fp8_numbers(5, 2, 15, 57344);
  EXPECT_EQ(e4m3.size(), 127U);
  EXPECT_EQ(e5m2.size(), 124U);
  expect_fp8("fp8", e4m3);
  expect_fp8("fp8:e5m2", e5m2);
}

TEST(Fp8, RoundsEveryHalfToEven) {
  for (const auto& [name, numbers] :
       {std::pair{"fp8", fp8_numbers(4, 3, 7, 448)}, std::pair{"fp8:e5m2", fp8_numbers(5, 2, 15, 57344)}}) {
    std::vector<float> values = {static_cast<float>(numbers.back())};  // the scale is one
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      const auto middle = static_cast<float>((numbers[i] + numbers[i + 1]) / 2);
      for (const float value : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e9F)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    values.resize(512 * ((values.size() + 511) / 512), static_cast<float>(numbers.back()));
    for (std::size_t begin = 0; begin < values.size(); begin += 512) values[begin] = values[0];
    const auto got = sent(*make_codec(name), values);
    const auto expected = reference_fp8(values, numbers);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(static_cast<double>(got[i]), expected[i]) << name << values[i];
  }
}

TEST(OneBit, IsSignTimesMeanMagnitude) {
  const auto codec = make_codec("onebit");
  for (const std::size_t size : kSizes) {
    const auto values = gradient(size);
    const auto got = sent(*codec, values);
    for_blocks(values, [&](std::size_t begin, std::span<const float> block) {
      double sum = 0;
      for (const float value : block) sum += std::fabs(static_cast<double>(value));
      const double mean = sum / static_cast<double>(block.size());
      for (std::size_t i = 0; i < block.size(); ++i) {
        ASSERT_NEAR(std::fabs(got[begin + i]), mean, mean * 1e-7);
        ASSERT_EQ(std::signbit(got[begin + i]), std::signbit(block[i])) << size << ": element " << begin + i;
      }
    });
  }
}

// p = |value| / unit rounded at random, with the reference's own random numbers. `random`: of the tensor.
void expect_levels(std::span<const float> values, std::span<const float> got, std::size_t begin, double unit,
                   int levels, const codec_kernel::ElementRandom& random, std::size_t& close) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = unit == 0 ? 0 : std::min(std::fabs(static_cast<double>(values[i])) / unit, 1.0 * levels);
    const double u = drawn(random, begin + i);
    const double rest = p - std::floor(p);
    // Within f32's roundings of p it may go either way.
    const bool near = std::fabs(u - rest) < 1e-5 * levels || rest < 1e-5 * levels || rest > 1 - 1e-5 * levels;
    const double level = std::floor(p) + (u < rest ? 1 : 0);
    const double expected = std::copysign(level * unit, values[i]);
    if (near && p != 0) {
      ++close;
      ASSERT_LE(std::fabs(got[i] - expected), unit * 1.0001);
    } else {
      ASSERT_NEAR(got[i], expected, unit * levels * 1e-6) << "element " << begin + i << " is " << values[i];
    }
  }
}

TEST(Qsgd, IsALevelOfTheBlocksNormAtRandom) {
  for (const int levels : {1, 2, 7, 16, 127}) {
    const auto codec = make_codec("qsgd:" + std::to_string(levels));
    for (const std::size_t size : kSizes) {
      const auto values = gradient(size);
      const auto got = sent(*codec, values);
      std::size_t close = 0;
      for_blocks(values, [&](std::size_t begin, std::span<const float> block) {
        double squares = 0;
        for (const float value : block) squares += static_cast<double>(value) * value;
        expect_levels(block, std::span(got).subspan(begin, block.size()), begin, std::sqrt(squares) / levels,
                      levels, random_of(kKey), close);
      });
      EXPECT_LE(close, size / 20 + 2) << levels << " levels, " << size;
    }
  }
}

TEST(TernGrad, IsTheLargestMagnitudeOrZeroAtRandom) {
  const auto codec = make_codec("terngrad");
  for (const std::size_t size : kSizes) {
    const auto values = gradient(size);
    const auto got = sent(*codec, values);
    std::size_t close = 0;
    expect_levels(values, got, 0, largest_of(values), 1, random_of(kKey), close);
    EXPECT_LE(close, size / 20 + 2) << size;
  }
}

TEST(TopK, SendsTheLargestExactly) {
  for (const double ratio : {0.001, 0.01, 0.1, 0.5, 1.0}) {
    const auto codec = make_codec("topk:" + std::to_string(ratio));
    for (const std::size_t size : kSizes) {
      if (size == 0) continue;
      const auto values = gradient(size);
      const auto k = std::max<std::size_t>(
          1, static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(size) - 1e-9)));
      std::vector<float> expected(size, 0);
      for (const std::size_t index : reference_topk(values, k)) expected[index] = values[index];
      EXPECT_EQ(sent(*codec, values), expected) << ratio << " of " << size;
      EXPECT_EQ(codec->payload_bytes(size), 8 * k);
    }
  }
}

TEST(TopK, TiesGoToTheLowerIndex) {
  // Six values in all, so that nearly everything ties; and all alike, of which the first k travel.
  std::vector<float> values = gradient(5000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (i * 7919 % 5 < 2 ? -1.0F : 1.0F) * static_cast<float>(1 + i * 31 % 3);
  for (const char* name : {"topk:0.01", "topk:0.3", "topk:0.5", "topk:0.9"}) {
    const auto codec = make_codec(name);
    const std::size_t k = codec->payload_bytes(values.size()) / 8;
    std::vector<float> expected(values.size(), 0);
    for (const std::size_t index : reference_topk(values, k)) expected[index] = values[index];
    EXPECT_EQ(sent(*codec, values), expected) << name;
  }
  const std::vector<float> alike(1000, -0.25F);
  const auto got = sent(*make_codec("topk:0.07"), alike);
  for (std::size_t i = 0; i < alike.size(); ++i) EXPECT_EQ(got[i], i < 70 ? -0.25F : 0.0F) << i;
}

TEST(TopK, KeepsAsManyAsTheRatioSays) {
  EXPECT_EQ(make_codec("topk:0.07")->payload_bytes(100), 56U);  // 0.07 * 100 is 7.000000000000001
  EXPECT_EQ(make_codec("topk:0.01")->payload_bytes(101), 16U);
  EXPECT_EQ(make_codec("topk:1e-9")->payload_bytes(1000), 8U);
  EXPECT_EQ(make_codec("topk:1")->payload_bytes(3), 24U);
}

TEST(Codec, PayloadsHaveTheSizeThatIsWrittenDown) {
  const std::size_t n = 512 * 3 + 100;
  EXPECT_EQ(make_codec("int8")->payload_bytes(n), n + 4 * 4);
  EXPECT_EQ(make_codec("fp8")->payload_bytes(n), n + 4 * 4);
  EXPECT_EQ(make_codec("onebit")->payload_bytes(n), 3 * 64 + 13 + 4 * 4);
  EXPECT_EQ(make_codec("qsgd:16")->payload_bytes(n), 6 * (3 * 64 + 13) + 4 * 4);
  EXPECT_EQ(make_codec("qsgd:7")->payload_bytes(n), 4 * (3 * 64 + 13) + 4 * 4);
  EXPECT_EQ(make_codec("qsgd:1")->payload_bytes(n), 2 * (3 * 64 + 13) + 4 * 4);
  EXPECT_EQ(make_codec("terngrad")->payload_bytes(n), 2 * (3 * 64 + 13) + 4);
  for (const std::string& name : codec_examples()) {
    EXPECT_EQ(make_codec(name)->payload_bytes(0), 0U) << name;
    EXPECT_EQ(make_codec(name)->name(), name);
  }
}

}  // namespace
}  // namespace lockstep
