#include "lockstep/base/bytes.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"0", 0},
      {"17", 17},
      {"4096", 4096},
      {"64K", 64 << 10},
      {"64k", 64 << 10},
      {"64KB", 64 << 10},
      {"64KiB", 64 << 10},
      {"64kib", 64 << 10},
      {"25M", 25 << 20},
      {"1G", 1 << 30},
      {"2T", std::uint64_t{2} << 40},
      {"1.5M", 3 << 19},
      {"0.5K", 512},
      {"1.0", 1},
      {"8B", 8},
      {"9007199254740993", 9007199254740993},  // 2^53 + 1, which no double holds
      {"4194304T", std::uint64_t{1} << 62},
  };
  for (const auto& [text, bytes] : cases) {
    SCOPED_TRACE(text);
    try {
      EXPECT_EQ(parse_bytes(text), bytes);
    } catch (const UsageError& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(ParseBytes, RefusesAnythingElse) {
  const char* const cases[] = {
      "",    "1.",  " ",    "K",    "-1",    "-0",   "+1",  "1 K",      "1KK",
      "1X",  "1iB", "1IB",  "1BB",  "1KiBB", "0x10", "1e3", "inf",      "nan",
      "1.5", ".5K", "1..5", "1,5M", "0.1K",  "1K ",  " 1K", "4194305T", "99999999999999999999"};
  for (const char* const text : cases) EXPECT_THROW(parse_bytes(text), UsageError) << "'" << text << "'";
}

TEST(ParseBytes, SaysWhatIsAccepted) {
  try {
    parse_bytes("12Q");
    FAIL() << "12Q was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "bad byte size '12Q'; accepted: a whole number of bytes, such as 4096, 64K, 25M, 1.5G");
  }
}

// Whatever the bytes, the answer is a number within bounds or a UsageError.
TEST(ParseBytes, RandomTextNeverDoesAnythingElse) {
  constexpr std::string_view alphabet = "0123456789.KkMmGgTtiIbB-+eExX \0\xff,";
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text;
    for (auto length = random() % 9; length > 0; --length)
      text += round % 2 == 0 ? alphabet[random() % alphabet.size()] : static_cast<char>(random());
    try {
      ASSERT_LE(parse_bytes(text), std::uint64_t{1} << 62) << text;
      ++accepted;
    } catch (const UsageError&) {
    }
  }
  EXPECT_GT(accepted, 1000);  // the loop does reach the accepting paths
}

TEST(FormatBytes, ShowsAtMostOneDecimal) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1025), "1.0 KiB");
  EXPECT_EQ(format_bytes(4096), "4 KiB");
  EXPECT_EQ(format_bytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1 MiB");  // never "1024.0 KiB"
  EXPECT_EQ(format_bytes(std::uint64_t{1} << 30), "1 GiB");
  EXPECT_EQ(format_bytes(std::uint64_t{1} << 62), "4194304 TiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16777216 TiB");
}

}  // namespace
}  // namespace lockstep
