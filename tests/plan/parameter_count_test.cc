#include "plan/parameter_count.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(ParameterCount, TakesSuffixes) {
  const struct {
    const char* text;
    double count;
  } cases[] = {{"1", 1},        {"125000000", 125e6}, {"34.5K", 34500}, {"350M", 350e6},  {"7.5B", 7.5e9},
               {"7.5b", 7.5e9}, {"1T", 1e12},         {"0.5m", 500e3},  {"1.005K", 1005}, {"1000T", 1e15},
               {"0.001k", 1},   {"2.3B", 2.3e9},      {"70.000B", 70e9}};
  for (const auto& c : cases) EXPECT_EQ(parse_parameter_count("--params", c.text), c.count) << c.text;
}

TEST(ParameterCount, RefusesWhatIsNone) {
  for (const char* text :
       {"",    "B",   "7.5",  "7.5G", "7.5BB", "7.5 B", "-1M", "+1M", "1e9",   "1.2345K",
        "nan", "inf", "infB", "many", "7,5B",  "0x10",  "0",   "0K",  "1001T", "99999999999999999999999"})
    try {
      parse_parameter_count("--params", text);
      ADD_FAILURE() << "took '" << text << "'";
    } catch (const UsageError& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.find("--params '" + std::string(text) + "' is "), 0u) << said;
      EXPECT_NE(said.find("accepted: "), std::string::npos) << said;
    }
}

TEST(ParameterCount, IsShownAsItIsWritten) {
  const struct {
    double count;
    const char* text;
  } cases[] = {{1, "1"},         {650, "650"},    {1000, "1K"},
               {34500, "34.5K"}, {999'990, "1M"}, {11'173'962, "11.17M"},
               {7.5e9, "7.5B"},  {1e12, "1T"},    {1e15, "1000T"}};
  for (const auto& c : cases) EXPECT_EQ(parameter_count_text(c.count), c.text) << c.count;
}

}  // namespace
}  // namespace lockstep
