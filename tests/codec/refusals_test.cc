// What is refused, and how.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "codec/values.h"
#include "comm/expect_error.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace testing;

TEST(MakeCodec, RefusesWhatItDoesNotKnowAndSaysWhatItDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "topk:0.01"},         {"topkk:0.01", "topk:0.01"},  {"int8:3", "no options"},
      {"onebit:", "no options"}, {"terngrad:2", "no options"}, {"fp8:e3m4", "fp8:e5m2"},
      {"qsgd", "1 to 127"},      {"qsgd:0", "1 to 127"},       {"qsgd:128", "1 to 127"},
      {"qsgd:4x", "1 to 127"},   {"qsgd:-1", "1 to 127"},      {"topk", "topk:0.01"},
      {"topk:0", "above 0"},     {"topk:1.01", "at most 1"},   {"topk:nan", "above 0"},
      {"topk:-0.1", "above 0"},  {"topk:1e999", "above 0"}};
  for (const auto& [text, accepted] : cases)
    expect_error<UsageError>([&, what = text] { make_codec(what); }, {text, accepted});
}

TEST(Codec, RefusesPayloadsOfAnotherSize) {
  for (const std::string& name : codec_examples()) {
    const auto codec = make_codec(name);
    const auto values = gradient(600);
    auto payload = encoded(*codec, values);
    std::vector<float> out(600);
    payload.pop_back();
    expect_error<MismatchError>([&] { codec->decode(payload, out); }, {name, "600 elements make"});
    expect_error<UsageError>([&] { codec->encode(values, kKey, payload); }, {name, "600 elements make"});
    payload.resize(payload.size() + 2);
    expect_error<MismatchError>([&] { codec->decode_add(payload, out); }, {name, "600 elements make"});
  }
}

TEST(Codec, RefusesPartsThatBeginOrEndInsideABlock) {
  for (const std::string& name : codec_examples()) {
    const auto codec = make_codec(name);
    const auto payload = encoded(*codec, gradient(1600));
    std::vector<float> out(1600);
    const std::span<float> values(out);
    expect_error<UsageError>([&] { codec->decode_range(payload, 1600, 1024, values.first(577)); },
                             {name, "of 1600"});
    expect_error<UsageError>([&] { codec->decode_range(payload, 1600, 1601, values.first(0)); },
                             {name, "of 1600"});
    if (codec->granularity() == 1) continue;
    expect_error<UsageError>([&] { codec->decode_range(payload, 1600, 10, values.first(1590)); },
                             {name, "multiple of 512"});
    expect_error<UsageError>([&] { codec->decode_add_range(payload, 1600, 512, values.first(100)); },
                             {name, "multiple of 512"});
  }
}

TEST(Codec, RefusesScalesThatNoEncoderMakes) {
  for (const char* name : {"int8", "fp8", "qsgd:16", "onebit", "terngrad"}) {
    const auto codec = make_codec(name);
    for (const float scale :
         {-1.0F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      auto payload = encoded(*codec, gradient(600));
      std::memcpy(payload.data(), &scale, sizeof(scale));
      std::vector<float> out(600);
      expect_error<MismatchError>([&] { codec->decode(payload, out); }, {name, "scale"});
    }
  }
}

TEST(Codec, RefusesCodesBeyondTheLevels) {
  for (const char* name : {"qsgd:16", "qsgd:1", "terngrad"}) {
    const auto codec = make_codec(name);
    auto payload = encoded(*codec, gradient(1000));
    std::fill(payload.begin() + 4, payload.begin() + 4 + 48, std::byte{0xff});
    std::vector<float> out(1000);
    expect_error<MismatchError>([&] { codec->decode(payload, out); }, {name, "beyond"});
  }
}

TEST(TopK, RefusesIndicesThatDoNotAscendOrAreBeyondTheTensorBeforeItWrites) {
  const auto codec = make_codec("topk:0.01");
  for (const std::uint32_t bad : {1000U, 0xffffffffU, 0U}) {
    auto payload = encoded(*codec, gradient(1000));
    std::memcpy(payload.data() + 9 * 4, &bad, 4);  // the last of ten
    std::vector<float> out(1000, 7);
    expect_error<MismatchError>([&] { codec->decode_add(payload, out); }, {"topk:0.01", "number 9 of 10"});
    EXPECT_EQ(out, std::vector<float>(1000, 7));
  }
  auto twice = encoded(*codec, gradient(1000));
  std::memcpy(twice.data() + 4, twice.data(), 4);
  std::vector<float> out(1000, 7);
  expect_error<MismatchError>([&] { codec->decode(twice, out); }, {"number 1 of 10"});
}

}  // namespace
}  // namespace lockstep
