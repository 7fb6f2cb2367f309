#include "train/read_state.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_state(text, "step-7");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ReadState, RefusesListsThatLieInEachOtherWithoutEnd) {
  const std::string deep(200'000, '['), end(200'000, ']');
  EXPECT_EQ(refusal("{\"format\":" + deep + end + ",\"step\":1,\"options\":{}}"),
            "step-7: its state.json is nested deeper than 64");
  EXPECT_EQ(refusal("{\"step\":1,\"options\":{\"lr\":" + deep + end + "}}"),
            "step-7: its state.json is nested deeper than 64");
}

TEST(ReadState, SaysWhichFormatThereIsInOneShortLine) {
  EXPECT_EQ(refusal(R"({"step":1,"options":{}})"), "accepted");
  EXPECT_EQ(refusal(R"({"format":2,"step":1,"options":{}})"),
            "step-7: its state.json has format 2; accepted: 1 (another version of lockstep wrote it)");
  EXPECT_LT(refusal("{\"format\":\"" + std::string(100'000, 'x') + "\"}").size(), 200u);
  EXPECT_EQ(refusal("{"), "step-7: its state.json is not that of a training run");
}

}  // namespace
}  // namespace lockstep
