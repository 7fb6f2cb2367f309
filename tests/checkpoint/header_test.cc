#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using test::message_of;

std::string refusal(const std::string& json, std::uint64_t data_bytes) {
  return message_of<UsageError>([&] { parse_header(json, data_bytes); });
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

TEST(Header, RoundTripKeepsEverything) {
  const SafetensorsHeader header{
      .tensors = {{.name = "w", .dtype = FileDType::i64, .shape = {2, 3}, .begin = 0, .end = 48},
                  {.name = "\"é\n", .dtype = FileDType::f32, .shape = {}, .begin = 48, .end = 52},
                  {.name = "none", .dtype = FileDType::bf16, .shape = {0, 7}, .begin = 52, .end = 52}},
      .metadata = {{"format", "pt"}, {"empty", ""}}};
  const std::string text = compose_header(header);
  EXPECT_EQ(text.size() % 8, 0u);
  std::array<std::byte, kHeaderLengthBytes> prefix{};
  std::memcpy(prefix.data(), text.data(), prefix.size());
  EXPECT_EQ(parse_header_length(prefix, text.size() + 52), text.size() - 8);
  EXPECT_EQ(parse_header(text.substr(8), 52), header);
}

TEST(Header, NoTensorsAtAll) {
  EXPECT_TRUE(parse_header("{}", 0).tensors.empty());
  EXPECT_TRUE(parse_header(compose_header({}).substr(8), 0).tensors.empty());
}

TEST(Header, TensorsComeInTheOrderOfTheirData) {
  const auto header = parse_header(
      "{" + tensor("a", "U8", "[1]", "[3,4]") + "," + tensor("b", "U8", "[3]", "[0,3]") + "}  ", 4);
  EXPECT_EQ(header.tensors.front().name, "b");
}

struct Broken {
  const char* what;
  std::string json;
  std::uint64_t data_bytes;
  const char* says;
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format("{{{}}}", tensor("w", dtype, shape, offsets));
}

TEST(Header, BrokenOnesAreRefused) {
  const Broken cases[] = {
      Broken{"empty", "", 0, "no JSON header"},
      Broken{"list", "[]", 0, "no JSON header"},
      Broken{"leading_space", " {}", 0, "no JSON header"},
      Broken{"cut", R"({"w":{"dtype":)", 0, "no JSON at byte"},
      Broken{"two_objects", "{}{}", 0, "no JSON at byte"},
      Broken{"not_utf8", "{\"\xff\":1}", 0, "no JSON at byte"},
      Broken{"name_twice",
             "{" + tensor("w", "U8", "[0]", "[0,0]") + "," + tensor("w", "U8", "[0]", "[0,0]") + "}", 0,
             R"(the name "w" comes twice)"},
      Broken{"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "comes twice"},
      Broken{"metadata_key_twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, R"(has "a" twice)"},
      Broken{"metadata_number", R"({"__metadata__":{"a":1}})", 0, "__metadata__ holds a number"},
      Broken{"metadata_deep", R"({"__metadata__":{"a":{"b":{}}}})", 0, "__metadata__ holds an object"},
      Broken{"field_twice", R"({"w":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1,
             "has dtype twice"},
      Broken{"field_unknown", R"({"w":{"type":"U8"}})", 1, "accepted: dtype, shape, data_offsets"},
      Broken{"field_missing", R"({"w":{"dtype":"U8","shape":[1]}})", 1, "lacks dtype, shape or data_offsets"},
      Broken{"deep", R"({"w":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "holds a list"},
      Broken{"number_for_tensor", R"({"w":3})", 0, "holds a number"},
      Broken{"dtype_unknown", one("F128", "[1]", "[0,16]"), 16, R"(dtype "F128"; accepted: BOOL, U8)"},
      Broken{"shape_negative", one("U8", "[-1]", "[0,1]"), 1, "holds a negative number"},
      Broken{"shape_fraction", one("U8", "[1.5]", "[0,1]"), 1, "no whole one"},
      Broken{"shape_64_bits", one("U8", "[9223372036854775808]", "[0,1]"), 1, "beyond 63 bits"},
      Broken{"shape_overflows_to_4", one("F32", "[4611686018427387905]", "[0,4]"), 4, "beyond 63 bits"},
      Broken{"shape_overflows_beside_0", one("F32", "[0,4294967296,4294967296]", "[0,0]"), 0,
             "beyond 63 bits"},
      Broken{"one_offset", one("U8", "[1]", "[0]"), 1, "needs two numbers"},
      Broken{"three_offsets", one("U8", "[1]", "[0,1,1]"), 1, "needs two numbers"},
      Broken{"size_differs", one("F32", "[2]", "[0,4]"), 4, "has 4 bytes; its dtype and shape need 8"},
      Broken{"offsets_backwards", one("U8", "[1]", "[1,0]"), 1, "lies at bytes 1 to 0"},
      Broken{"gap", "{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[2,3]") + "}",
             3, R"("b" lies at bytes 2 to 3 of the data, where 1 comes next)"},
      Broken{"overlap",
             "{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[1,3]") + "}", 3,
             "where 2 comes next"},
      Broken{"behind_the_end", one("U8", "[5]", "[0,5]"), 4,
             "cut off: its tensors need 5 bytes of data, it has 4"},
      Broken{"trailing", one("U8", "[5]", "[0,5]"), 6, "bytes after its last tensor"}};
  for (const auto& [what, json, data_bytes, says] : cases) {
    const auto message = refusal(json, data_bytes);
    EXPECT_NE(message.find(says), std::string::npos) << what << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << what << ": " << message;
  }
}

TEST(Header, LengthIsBounded) {
  const auto length = [](std::uint64_t value, std::uint64_t file_bytes) {
    std::array<std::byte, kHeaderLengthBytes> bytes{};
    std::memcpy(bytes.data(), &value, sizeof value);
    return parse_header_length(bytes, file_bytes);
  };
  const auto refused = [&](std::uint64_t value) {
    return message_of<UsageError>([&] { length(value, 1000); });
  };
  EXPECT_NE(refused(~std::uint64_t{0}).find("at most 100000000"), std::string::npos);
  EXPECT_NE(refused(993).find("cut off: its header has 993 bytes, the whole file 1000"), std::string::npos);
  EXPECT_EQ(length(992, 1000), 992u);
}

TEST(Header, TooManyDimensions) {
  std::string shape = "[1";
  for (std::size_t i = 0; i < kMaxDimensions; ++i) shape += ",1";
  EXPECT_NE(refusal(one("U8", shape + "]", "[0,1]"), 1).find("more than 64 dimensions"), std::string::npos);
}

TEST(Header, HostileNamesStayOnOneShortLine) {
  const std::string message = refusal(fmt::format(R"({{"{:x>5000}\n":{{}}}})", ""), 0);
  EXPECT_LT(message.size(), 300u);
  EXPECT_EQ(refusal(R"({"a\nb":{}})", 0).find('\n'), std::string::npos);
}

TEST(Header, ComposeRefusesWhatItCouldNotReadBack) {
  EXPECT_THROW(compose_header({.tensors = {{.name = "__metadata__"}}, .metadata = {}}), UsageError);
  EXPECT_THROW(compose_header({.tensors = {{.name = "\xff"}}, .metadata = {}}), UsageError);
}

}  // namespace
}  // namespace lockstep
