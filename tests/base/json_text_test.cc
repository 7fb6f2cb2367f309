#include "base/json_text.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(JsonText, CountsTheListsAndObjectsThatLieInEachOther) {
  EXPECT_FALSE(nests_deeper("", 0));
  EXPECT_FALSE(nests_deeper("1", 0));
  EXPECT_TRUE(nests_deeper("[]", 0));
  EXPECT_FALSE(nests_deeper("[[],[],{}]", 2));
  EXPECT_TRUE(nests_deeper("[[],[],{\"a\":[1]}]", 2));
  EXPECT_FALSE(nests_deeper("[[],[],{\"a\":[1]}]", 3));
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < kMostJsonDepth; ++i) text += open;
    EXPECT_FALSE(nests_deeper(text)) << open;
    EXPECT_TRUE(nests_deeper(text + open)) << open;
  }
}

TEST(JsonText, PassesOverWhatStandsInTexts) {
  EXPECT_FALSE(nests_deeper(R"(["[[[[", "{{\"[[\\", "\\\"[["])", 1));
  EXPECT_TRUE(nests_deeper(R"(["\\", [1]])", 1));
  EXPECT_TRUE(nests_deeper(R"(["\"", [1]])", 1));
  EXPECT_FALSE(nests_deeper(R"("[[)", 1));  // cut off
  EXPECT_FALSE(nests_deeper("\"\\", 1));
}

TEST(JsonText, SaysHowDeepATextMayBe) {
  expect_shallow("[[1]]", 2);
  try {
    expect_shallow(std::string(200'000, '['));
    FAIL() << "taken";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "nested deeper than 64");
  }
}

}  // namespace
}  // namespace lockstep
