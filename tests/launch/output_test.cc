// lockstep run where files can't be written, and what it leaves in the temporary folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "launch/harness.h"
#include "launch/relay.h"
#include "launch/sink.h"

namespace lockstep::test {
namespace {

// What `lockstep` with these arguments does when its standard output is a full disk.
Outcome run_on_full_disk(const std::vector<std::string>& arguments) {
  return Program(arguments, {}, [] { ::dup2(::open("/dev/full", O_WRONLY), 1); }).finish();
}

TEST(Output, ThatCannotBeWrittenIsAFailureThatIsNamed) {
  struct Case {
    std::vector<std::string> arguments;
    const char* reason;
  };
  const Case cases[] = {{{"run", "-n", "2", "yes"}, "No space left on device"},
                        {{"run", "-n", "2", "echo", "hi"}, "No space left on device"},
                        {{"run", "echo", "hi"}, "No space left on device"},
                        {{"run", "--json", "true"}, "disk full"},
                        {{"run", "--help"}, "disk full"}};
  for (const Case& one : cases) {
    const Outcome outcome = run_on_full_disk(one.arguments);
    EXPECT_EQ(outcome.status, 1) << one.arguments.back();
    EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find("standard output can't be written"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(one.reason), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("SIGPIPE"), std::string::npos) << outcome.err;
  }
}

TEST(Output, ALogFileOnAFullDiskIsNamedWithTheReason) {
  launcher::Sink sink(1);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_EQ(::write(ends[1], "text\n", 5), 5);
  ::close(ends[1]);
  launcher::Relay relay({.pipe = UniqueFd(ends[0]),
                         .file = UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)),
                         .sink = &sink,
                         .form = launcher::Relay::Form::none});
  ::testing::internal::CaptureStderr();
  relay.read_some();
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
}

TEST(Output, ATemporaryFolderThatIsNotThereMattersOnlyWhenItIsNeeded) {
  EXPECT_EQ(run({"run", "true"}, {"TMPDIR=/proc/no/such"}).status, 0);
  const Outcome needed = run({"run", "-r", "3", "true"}, {"TMPDIR=/proc/no/such"});
  EXPECT_EQ(needed.status, 1);
  EXPECT_NE(needed.err.find("/proc/no/such"), std::string::npos) << needed.err;
}

TEST(Output, RestartsThatSucceededLeaveNoDumps) {
  const TempFolder folder;
  const std::string script =
      "mkdir -p $LOCKSTEP_DUMP_DIR; echo {} > $LOCKSTEP_DUMP_DIR/flight-world-rank$RANK.json; "
      "[ $LOCKSTEP_RESTART = $1 ] && exit 0; exit 1";
  const auto left = [&folder] {
    const std::filesystem::directory_iterator entries(folder.path());
    return std::distance(begin(entries), end(entries));
  };
  const std::vector<std::string> environment = {"TMPDIR=" + folder.path()};
  EXPECT_EQ(run({"run", "-n", "2", "--max-restarts", "2", "sh", "-c", script, "sh", "2"}, environment).status,
            0);
  EXPECT_EQ(left(), 0);
  EXPECT_EQ(run({"run", "-n", "2", "--max-restarts", "1", "sh", "-c", script, "sh", "9"}, environment).status,
            1);
  EXPECT_GE(left(), 1);  // of one that failed they are what the report points to
}

}  // namespace
}  // namespace lockstep::test
