// The same bits: of every instruction set, of parts and wholes, of adding and overwriting.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "codec/targets.h"
#include "codec/values.h"
#include "compress/codec/kernels.h"

namespace lockstep {
namespace {

using namespace testing;

// Bits, so that NaN and the sign of zero count.
std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

// Gradients among which are numbers that hurt: the largest, the smallest, subnormal ones, and a block with
// NaN.
std::vector<float> hard(std::size_t count) {
  std::vector<float> values = gradient(count, 5);
  const float large = std::numeric_limits<float>::max();
  const float painful[] = {large, -large, 1e-45F, -1e-40F, 1e-38F, 0x1.fp127F, -0.0F};
  for (std::size_t i = 0; i < count; ++i)
    if (i / 512 % 4 == 1 && i % 70 < 7) values[i] = painful[i % 70];
  for (std::size_t i = 1024; i < std::min<std::size_t>(count, 1536); ++i) values[i] *= 1e-37F;
  if (count > 2000) values[2000] = std::numeric_limits<float>::quiet_NaN();
  if (count > 4096) values[4096] = -std::numeric_limits<float>::infinity();
  return values;
}

const std::vector<std::string> kCodecs = {"int8",   "fp8",       "fp8:e5m2", "qsgd:1",
                                          "qsgd:7", "qsgd:16",   "qsgd:127", "terngrad",
                                          "onebit", "topk:0.01", "topk:0.4", "topk:1"};

TEST(CodecBits, AreThoseOfEveryInstructionSet) {
  const auto targets = runnable_targets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& name : kCodecs) {
    const auto codec = make_codec(name);
    for (const std::size_t size : {1U, 65U, 513U, 1000U, 5000U, 20011U})
      for (const bool with_hard : {false, true}) {
        const auto values = with_hard ? hard(size) : gradient(size);
        std::vector<std::byte> payload;
        std::vector<std::uint32_t> overwritten, added;
        for (const std::int64_t target : targets) {
          use_targets(target);
          const auto here = encoded(*codec, values);
          const auto out = bits_of(decoded(*codec, here, size));
          auto sum = gradient(size, 9);
          codec->decode_add(here, sum);
          use_targets(0);
          const std::string where = name + " of " + std::to_string(size) + " on " + hwy::TargetName(target);
          if (target == targets.front()) {
            payload = here;
            overwritten = out;
            added = bits_of(sum);
          }
          EXPECT_EQ(here, payload) << where;
          EXPECT_EQ(out, overwritten) << where;
          EXPECT_EQ(bits_of(sum), added) << where;
        }
      }
  }
}

TEST(CodecBits, AddingIsDecodingAndAdding) {
  for (const std::string& name : kCodecs) {
    const auto codec = make_codec(name);
    for (const std::size_t size : kSizes) {
      const auto payload = encoded(*codec, gradient(size));
      auto expected = gradient(size, 2);
      auto sum = expected;
      const auto alone = decoded(*codec, payload, size);
      for (std::size_t i = 0; i < size; ++i) expected[i] += alone[i];
      // What is not sent adds nothing, so that -0 stays: only values are compared.
      codec->decode_add(payload, sum);
      EXPECT_EQ(sum, expected) << name << " of " << size;
    }
  }
}

TEST(CodecBits, OfAPartAreThoseOfTheWhole) {
  for (const std::string& name : kCodecs) {
    const auto codec = make_codec(name);
    const std::size_t unit = codec->granularity();
    for (const std::size_t size : {std::size_t{1}, 3 * unit, 7 * unit + unit / 3, std::size_t{5000}}) {
      const auto payload = encoded(*codec, gradient(size));
      const auto whole = decoded(*codec, payload, size);
      for (std::size_t begin = 0; begin <= size; begin += unit * (1 + begin % 3))
        for (const std::size_t wanted : {0 * unit, unit, 3 * unit, size}) {
          const std::size_t end = std::min(size, begin + wanted);
          std::vector<float> part(end - begin, 5);
          std::vector<float> sum(end - begin, 1);
          codec->decode_range(payload, size, begin, part);
          codec->decode_add_range(payload, size, begin, sum);
          for (std::size_t i = 0; i < part.size(); ++i) {
            ASSERT_EQ(part[i], whole[begin + i]) << name << ": " << begin << " to " << end << " of " << size;
            ASSERT_EQ(sum[i], 1 + whole[begin + i])
                << name << ": " << begin << " to " << end << " of " << size;
          }
          if (unit == 1 && wanted > 3) break;  // every element begins a part there: enough of them
        }
    }
  }
}

// Nothing beside the tensor or the payload is written.
TEST(CodecBits, StayInTheirMemory) {
  constexpr std::size_t kFence = 64;
  for (const std::string& name : kCodecs) {
    const auto codec = make_codec(name);
    for (const std::size_t size : kSizes) {
      const auto values = gradient(size);
      const std::size_t bytes = codec->payload_bytes(size);
      std::vector<std::byte> payload(bytes + 2 * kFence, std::byte{0x5a});
      codec->encode(values, kKey, std::span(payload).subspan(kFence, bytes));
      EXPECT_TRUE(std::all_of(payload.begin(), payload.begin() + kFence,
                              [](std::byte b) { return b == std::byte{0x5a}; }));
      EXPECT_TRUE(std::all_of(payload.end() - kFence, payload.end(),
                              [](std::byte b) { return b == std::byte{0x5a}; }));
      std::vector<float> out(size + 2 * kFence, 3);
      codec->decode(std::span(payload).subspan(kFence, bytes), std::span(out).subspan(kFence, size));
      codec->decode_add(std::span(payload).subspan(kFence, bytes), std::span(out).subspan(kFence, size));
      EXPECT_TRUE(std::all_of(out.begin(), out.begin() + kFence, [](float x) { return x == 3; }))
          << name << size;
      EXPECT_TRUE(std::all_of(out.end() - kFence, out.end(), [](float x) { return x == 3; })) << name << size;
    }
  }
}

}  // namespace
}  // namespace lockstep
