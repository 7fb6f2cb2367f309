#include "lockstep/base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(DType, HasSizeNameAndClass) {
  const std::tuple<DType, std::size_t, const char*, bool> cases[] = {
      {DType::f64, 8, "f64", true},   {DType::f32, 4, "f32", true},  {DType::f16, 2, "f16", true},
      {DType::bf16, 2, "bf16", true}, {DType::i64, 8, "i64", false}, {DType::i32, 4, "i32", false},
      {DType::i8, 1, "i8", false},    {DType::u8, 1, "u8", false},
  };
  EXPECT_EQ(std::size(cases), std::size(kAllDTypes));
  for (const auto& [dtype, size, name, floating] : cases) {
    EXPECT_EQ(size_of(dtype), size) << name;
    EXPECT_STREQ(to_string(dtype), name);
    EXPECT_EQ(is_float(dtype), floating) << name;
    EXPECT_EQ(parse_dtype(name), dtype);
  }
}

TEST(DType, FollowsFromTheElementType) {
  EXPECT_EQ(kDTypeOf<double>, DType::f64);
  EXPECT_EQ(kDTypeOf<float>, DType::f32);
  EXPECT_EQ(kDTypeOf<Half>, DType::f16);
  EXPECT_EQ(kDTypeOf<BFloat16>, DType::bf16);
  EXPECT_EQ(kDTypeOf<std::int64_t>, DType::i64);
  EXPECT_EQ(kDTypeOf<std::int32_t>, DType::i32);
  EXPECT_EQ(kDTypeOf<std::int8_t>, DType::i8);
  EXPECT_EQ(kDTypeOf<std::uint8_t>, DType::u8);
  EXPECT_FALSE(kIsElement<std::uint16_t>);
  EXPECT_FALSE(kIsElement<bool>);
}

TEST(DType, UnknownNamesListTheKnown) {
  try {
    parse_dtype("float");
    FAIL() << "float was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "unknown type 'float'; accepted: f64, f32, f16, bf16, i64, i32, i8, u8");
  }
  for (const char* const text : {"", "F32", "f32 ", "f3"})
    EXPECT_THROW(parse_dtype(text), UsageError) << text;
}

TEST(ReduceOp, NamesGoBothWays) {
  for (const ReduceOp op : kAllReduceOps) EXPECT_EQ(parse_reduce_op(to_string(op)), op);
  try {
    parse_reduce_op("mean");
    FAIL() << "mean was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown reduction 'mean'; accepted: sum, avg, min, max, product, bit_and, bit_or");
  }
}

TEST(ReduceOp, BitOperationsNeedIntegers) {
  for (const DType dtype : kAllDTypes)
    for (const ReduceOp op : kAllReduceOps) {
      const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or;
      EXPECT_EQ(supports(op, dtype), !bitwise || !is_float(dtype))
          << to_string(op) << " " << to_string(dtype);
    }
}

// The value of 16 bits by the definition of the format: sign, exponent, mantissa.
double value_by_definition(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = std::ldexp(bits & ((1 << mantissa_bits) - 1), -mantissa_bits);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias)
                       : sign * std::ldexp(1 + mantissa, exponent - bias);
}

TEST(Half, EveryValueIsRightAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const double expected = value_by_definition(half.bits, 5, 10);
    const float wide = to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
      ASSERT_EQ(to_half(wide).bits, bits | 0x200) << std::hex << bits;  // quiet, payload kept
      continue;
    }
    ASSERT_EQ(wide, expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << std::hex << bits;
    ASSERT_EQ(to_half(wide).bits, bits) << std::hex << bits;
  }
}

TEST(BFloat16, EveryValueIsRightAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    const double expected = value_by_definition(brain.bits, 8, 7);
    const float wide = to_float(brain);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
      ASSERT_EQ(to_bfloat16(wide).bits, bits | 0x40) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(wide, expected) << std::hex << bits;
    ASSERT_EQ(to_bfloat16(wide).bits, bits) << std::hex << bits;
  }
}

// Between two neighbours the nearer one wins, and the even one exactly half way.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t low = 0; low < 0x7bff; ++low) {
    const float a = to_float(Half{static_cast<std::uint16_t>(low)});
    const float b = to_float(Half{static_cast<std::uint16_t>(low + 1)});
    const float middle = a + (b - a) / 2;  // exact: f32 has 13 more bits
    ASSERT_EQ(to_half(middle).bits, low % 2 == 0 ? low : low + 1) << std::hex << low;
    ASSERT_EQ(to_half(std::nextafter(middle, a)).bits, low) << std::hex << low;
    ASSERT_EQ(to_half(std::nextafter(middle, b)).bits, low + 1) << std::hex << low;
    ASSERT_EQ(to_half(-middle).bits, 0x8000 | (low % 2 == 0 ? low : low + 1)) << std::hex << low;
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  for (std::uint32_t low = 0; low < 0x7f7f; ++low) {
    const std::uint32_t middle = (low << 16) | 0x8000U;
    ASSERT_EQ(to_bfloat16(float_of(middle)).bits, low % 2 == 0 ? low : low + 1) << std::hex << low;
    ASSERT_EQ(to_bfloat16(float_of(middle - 1)).bits, low) << std::hex << low;
    ASSERT_EQ(to_bfloat16(float_of(middle + 1)).bits, low + 1) << std::hex << low;
  }
}

TEST(Half, EndsOfTheRange) {
  EXPECT_EQ(to_half(65504.0F).bits, 0x7bff);
  EXPECT_EQ(to_half(std::nextafter(65520.0F, 0.0F)).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_half(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(to_half(0x1p-24F).bits, 0x0001);
  EXPECT_EQ(to_half(0x1p-25F).bits, 0x0000);  // half way to zero, and zero is even
  EXPECT_EQ(to_half(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(to_half(-0.0F).bits, 0x8000);
}

TEST(BFloat16, EndsOfTheRange) {
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(to_bfloat16(-0.0F).bits, 0x8000);
  // A NaN whose payload lies only in the bits that go stays a NaN.
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(float_of(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(to_float(to_half(float_of(0x7f800001U)))));
}

#ifdef __FLT16_MAX__
// The compiler's own conversion is the second opinion.
TEST(Half, AgreesWithTheCompilerOnRandomPatterns) {
  std::mt19937 random(11);
  for (int round = 0; round < 4'000'000; ++round) {
    // Every second pattern is drawn from the exponents that a half can hold.
    std::uint32_t pattern = static_cast<std::uint32_t>(random());
    if (round % 2 == 0) pattern = (pattern & 0x807fffffU) | ((100U + pattern % 45U) << 23);
    const float value = float_of(pattern);
    if (std::isnan(value)) continue;
    const auto compiled = static_cast<_Float16>(value);
    ASSERT_EQ(to_half(value).bits, std::bit_cast<std::uint16_t>(compiled)) << std::hex << bits_of(value);
    ASSERT_EQ(to_float(to_half(value)), static_cast<float>(compiled)) << std::hex << bits_of(value);
  }
}
#endif

}  // namespace
}  // namespace lockstep
