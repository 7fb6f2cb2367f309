#include "lockstep/base/knobs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Every test starts with none of our variables set and leaves the environment as it was.
class KnobsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text(*entry);
      if (text.starts_with("LOCKSTEP_") || text.starts_with("XDG_CACHE_HOME=") || text.starts_with("HOME="))
        saved_.push_back(text);
    }
    for (const std::string& text : saved_) ::unsetenv(text.substr(0, text.find('=')).c_str());
  }

  void TearDown() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const std::string& text : saved_) {
      const auto at = text.find('=');
      ::setenv(text.substr(0, at).c_str(), text.substr(at + 1).c_str(), 1);
    }
  }

  void set(const char* name, const char* value) {
    ::setenv(name, value, 1);
    set_.emplace_back(name);
  }

  Knobs with(const char* name, const char* value) {
    set(name, value);
    return Knobs::from_environment();
  }

  std::string refusal(const char* name, const char* value) {
    set(name, value);
    std::string message = "accepted";
    try {
      Knobs::from_environment();
    } catch (const UsageError& error) {
      message = error.what();
    }
    ::unsetenv(name);
    return message;
  }

 private:
  std::vector<std::string> saved_;
  std::vector<std::string> set_;
};

TEST_F(KnobsTest, DefaultsWhenNothingIsSet) {
  const Knobs knobs = Knobs::from_environment();
  EXPECT_EQ(knobs.log, "warn");
  EXPECT_EQ(knobs.algorithm, "");
  EXPECT_EQ(knobs.timeout, std::chrono::minutes(10));
  EXPECT_EQ(knobs.warn_after, std::chrono::seconds(10));
  EXPECT_EQ(knobs.init_timeout, std::chrono::minutes(2));
  EXPECT_FALSE(knobs.spin.has_value());
  EXPECT_EQ(knobs.arena_bytes, std::uint64_t{64} << 30);
  EXPECT_TRUE(knobs.huge_pages);
  EXPECT_EQ(knobs.dump_dir, "");
  EXPECT_EQ(knobs.cache_dir, "off");  // neither HOME nor XDG_CACHE_HOME
  EXPECT_EQ(knobs.node_size, 0);
}

TEST_F(KnobsTest, EmptyCountsAsNotSet) {
  for (const char* const name :
       {"LOCKSTEP_LOG", "LOCKSTEP_ALGORITHM", "LOCKSTEP_TIMEOUT_S", "LOCKSTEP_SPIN_US", "LOCKSTEP_ARENA",
        "LOCKSTEP_HUGE_PAGES", "LOCKSTEP_CACHE_DIR"})
    set(name, "");
  const Knobs knobs = Knobs::from_environment();
  EXPECT_EQ(knobs.log, "warn");
  EXPECT_EQ(knobs.timeout, std::chrono::minutes(10));
  EXPECT_FALSE(knobs.spin.has_value());
  EXPECT_EQ(knobs.cache_dir, "off");
}

TEST_F(KnobsTest, ReadsEveryVariable) {
  for (const char* const level : {"trace", "debug", "info", "warn", "error", "off"})
    EXPECT_EQ(with("LOCKSTEP_LOG", level).log, level);
  EXPECT_EQ(with("LOCKSTEP_ALGORITHM", "ring").algorithm, "ring");
  EXPECT_EQ(with("LOCKSTEP_TIMEOUT_S", "30").timeout, std::chrono::seconds(30));
  EXPECT_EQ(with("LOCKSTEP_TIMEOUT_S", "1.001").timeout, milliseconds(1001));  // 1.001 * 1000 < 1001
  EXPECT_EQ(with("LOCKSTEP_TIMEOUT_S", "0.001").timeout, milliseconds(1));
  EXPECT_EQ(with("LOCKSTEP_WARN_AFTER_S", "2.5").warn_after, milliseconds(2500));
  EXPECT_EQ(with("LOCKSTEP_WARN_AFTER_S", "0").warn_after, milliseconds(0));
  EXPECT_EQ(with("LOCKSTEP_INIT_TIMEOUT_S", "5").init_timeout, std::chrono::seconds(5));
  EXPECT_EQ(with("LOCKSTEP_SPIN_US", "0").spin, microseconds(0));
  EXPECT_EQ(with("LOCKSTEP_SPIN_US", "250").spin, microseconds(250));
  EXPECT_EQ(with("LOCKSTEP_ARENA", "64M").arena_bytes, std::uint64_t{64} << 20);
  EXPECT_EQ(with("LOCKSTEP_ARENA", "4T").arena_bytes, std::uint64_t{4} << 40);
  EXPECT_FALSE(with("LOCKSTEP_HUGE_PAGES", "0").huge_pages);
  EXPECT_TRUE(with("LOCKSTEP_HUGE_PAGES", "1").huge_pages);
  EXPECT_EQ(with("LOCKSTEP_DUMP_DIR", "/dumps").dump_dir, "/dumps");
  EXPECT_EQ(with("LOCKSTEP_NODE_SIZE", "2").node_size, 2);
}

TEST_F(KnobsTest, CacheFolderFollowsTheDesktopRules) {
  EXPECT_EQ(with("HOME", "/home/ann").cache_dir, "/home/ann/.cache/lockstep");
  EXPECT_EQ(with("XDG_CACHE_HOME", "/cache").cache_dir, "/cache/lockstep");
  EXPECT_EQ(with("LOCKSTEP_CACHE_DIR", "/elsewhere").cache_dir, "/elsewhere");
  EXPECT_EQ(with("LOCKSTEP_CACHE_DIR", "off").cache_dir, "off");
}

TEST_F(KnobsTest, RefusesBadValuesAndNamesTheVariable) {
  EXPECT_EQ(refusal("LOCKSTEP_LOG", "loud"),
            "LOCKSTEP_LOG='loud' is not understood; accepted: trace, debug, info, warn, error, off");
  EXPECT_EQ(refusal("LOCKSTEP_HUGE_PAGES", "yes"),
            "LOCKSTEP_HUGE_PAGES='yes' is not understood; accepted: 0 or 1");
  EXPECT_EQ(refusal("LOCKSTEP_WARN_AFTER_S", "-1"),
            "LOCKSTEP_WARN_AFTER_S='-1' is not understood; accepted: 0 (never), or seconds from 0.001 to "
            "10000000, for example 30 or 0.5");
  const std::pair<const char*, const char*> cases[] = {
      {"LOCKSTEP_TIMEOUT_S", "0"},   {"LOCKSTEP_TIMEOUT_S", "-1"},     {"LOCKSTEP_TIMEOUT_S", "soon"},
      {"LOCKSTEP_TIMEOUT_S", "1e8"}, {"LOCKSTEP_TIMEOUT_S", "inf"},    {"LOCKSTEP_TIMEOUT_S", "nan"},
      {"LOCKSTEP_TIMEOUT_S", "30s"}, {"LOCKSTEP_INIT_TIMEOUT_S", "x"}, {"LOCKSTEP_SPIN_US", "-1"},
      {"LOCKSTEP_SPIN_US", "0.5"},   {"LOCKSTEP_SPIN_US", "1000001"},  {"LOCKSTEP_ARENA", "big"},
      {"LOCKSTEP_ARENA", "1M"},      {"LOCKSTEP_ARENA", "5T"},         {"LOCKSTEP_NODE_SIZE", "2.5"},
      {"LOCKSTEP_NODE_SIZE", "-1"},  {"LOCKSTEP_NODE_SIZE", "two"},
  };
  for (const auto& [name, value] : cases) {
    const std::string start = std::string(name) + "='" + value + "' is not understood; accepted: ";
    const std::string message = refusal(name, value);
    EXPECT_TRUE(message.starts_with(start) && message.size() > start.size()) << message;
  }
}

TEST_F(KnobsTest, RefusesVariablesThatNobodyKnows) {
  const std::string message = refusal("LOCKSTEP_TIMEOUT", "30");
  EXPECT_TRUE(message.starts_with("unknown environment variable LOCKSTEP_TIMEOUT; known: LOCKSTEP_"))
      << message;
  EXPECT_NE(message.find("LOCKSTEP_TIMEOUT_S"), std::string::npos) << message;
}

TEST_F(KnobsTest, KnowsTheLaunchersVariables) {
  EXPECT_EQ(refusal("LOCKSTEP_JOB", "a job"), "accepted");
  EXPECT_EQ(refusal("LOCKSTEP_RESTART", "1"), "accepted");
}

TEST_F(KnobsTest, LoggingWorksEvenWithABadEnvironment) {
  set("LOCKSTEP_LOG", "loud");
  EXPECT_NO_THROW(log());
  EXPECT_EQ(log().level(), spdlog::level::warn);
}

TEST_F(KnobsTest, LogLinesNameTheRank) {
  testing::internal::CaptureStderr();
  set_log_rank(3);
  log().warn("a {} line", "short");
  log().debug("not shown");
  log().flush();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "lockstep rank 3 warning: a short line\n");
}

}  // namespace
}  // namespace lockstep
