// NaN and infinity are passed on as NaN (top-k: as they are), and finite numbers stay finite.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>

#include "codec/values.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NotFinite, MakesItsBlockNan) {
  for (const char* name : {"int8", "fp8", "fp8:e5m2", "qsgd:1", "qsgd:16", "onebit"})
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity})
      for (const std::size_t at :
           {512U, 700U, 1023U, 1536U, 1599U}) {  // in the second block, or in the last, short one
        auto values = gradient(1600);
        values[at] = bad;
        const auto got = sent(*make_codec(name), values);
        std::vector<float> sum(values.size(), 1);
        make_codec(name)->decode_add(encoded(*make_codec(name), values), sum);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), i / 512 == at / 512)
              << name << ": " << bad << " at " << at << ", element " << i;
          ASSERT_EQ(std::isnan(sum[i]), i / 512 == at / 512)
              << name << ": " << bad << " at " << at << ", element " << i;
        }
      }
}

TEST(NotFinite, MakesTernGradsTensorNan) {
  for (const float bad : {kNan, kInfinity, -kInfinity})
    for (const std::size_t at : {0U, 640U, 1599U}) {
      auto values = gradient(1600);
      values[at] = bad;
      for (const float value : sent(*make_codec("terngrad"), values))
        ASSERT_TRUE(std::isnan(value)) << bad << " at " << at;
    }
}

TEST(NotFinite, TravelsByTopKAsItIs) {
  auto values = gradient(1600);
  values[1500] = kNan;
  values[70] = -kInfinity;
  const auto got = sent(*make_codec("topk:0.002"), values);  // four
  EXPECT_TRUE(std::isnan(got[1500]));
  EXPECT_EQ(got[70], -kInfinity);
  EXPECT_EQ(std::count(got.begin(), got.end(), 0.0F), 1600 - 4);
  // More of them than are sent: NaN before infinities, the lower indices first.
  std::vector<float> all(100, kInfinity);
  all[99] = kNan;
  const auto few = sent(*make_codec("topk:0.02"), all);
  EXPECT_TRUE(std::isnan(few[99]));
  EXPECT_EQ(few[0], kInfinity);
  EXPECT_EQ(few[1], 0);
}

TEST(Finite, StaysFinite) {
  for (const std::string& name : codec_examples())
    for (const float top :
         {FLT_MAX, 0x1.fp127F, 0x1.dp127F, 0x1.cp127F, 0x1p127F, 1e30F, 1e-30F, FLT_MIN, 1e-40F, 1e-45F})
      for (const bool alike : {false, true}) {
        std::vector<float> values(600);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = (i % 3 == 0 ? -top : top) / (alike ? 1.0F : static_cast<float>(1 + i % 17));
        const auto got = sent(*make_codec(name), values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_TRUE(std::isfinite(got[i])) << name << ": " << values[i] << " became " << got[i];
          ASSERT_TRUE(got[i] == 0 || std::signbit(got[i]) == std::signbit(values[i]))
              << name << ": " << values[i];
        }
      }
}

TEST(Finite, ZerosStayZeros) {
  for (const std::string& name : codec_examples())
    for (const std::size_t size : {1U, 64U, 1000U})
      for (const float value : sent(*make_codec(name), std::vector<float>(size, 0.0F)))
        ASSERT_EQ(value, 0) << name;
}

}  // namespace
}  // namespace lockstep
