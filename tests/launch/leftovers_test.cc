// Whatever ends a job, none of its processes is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/repeated.h"
#include "launch/harness.h"

namespace lockstep::test {
namespace {

TEST(Leftovers, KillsWorkersThatIgnoreSigterm) {
  // A worker that was killed before its shell ran its trap is given more time in the next run, and so is one
  // whose launcher had no core when it was to kill it.
  for (const double grace : {0.3, 1.0, 3.0}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/up";
    Program program({"run", "-n", "2", "--grace", std::to_string(grace), "sh", "-c",
                     "[ $RANK = 0 ] && { until [ -e " + file + " ]; do sleep 0.01; done; exit 1; }; " +
                         "trap 'echo told' TERM; touch " + file +
                         "; while :; do sleep 0.1; echo tick; done"});
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_TRUE(program.leftovers().empty());
    const std::vector<std::string> lines = lines_of(outcome.out);
    const auto told = std::find(lines.begin(), lines.end(), "[rank 1] told");
    // The worker's own ticks measure the time that it is given: a busy machine makes both longer. 5 s, the
    // default after a failure, are 50.
    const auto ticks = static_cast<double>(std::count(told, lines.end(), "[rank 1] tick"));
    const bool in_time = told != lines.end() && ticks < 17 + 10 * grace;
    if (!in_time && grace < 3) {
      lockstep::testing::say_repeated(std::to_string(ticks) + " ticks of a worker that ignores SIGTERM");
      continue;
    }
    ASSERT_NE(told, lines.end()) << outcome.out;
    EXPECT_TRUE(in_time) << ticks << " ticks:\n" << outcome.out;
    return;
  }
}

TEST(Leftovers, KillsGrandchildrenToo) {
  const TempFolder folder;
  const std::string up = folder.path() + "/up";
  const std::string all_up =
      "[ -e " + up + "a0 ] && [ -e " + up + "b0 ] && [ -e " + up + "a1 ] && [ -e " + up + "b1 ]";
  Program program({"run", "-n", "2", "sh", "-c",
                   "sleep 60 & setsid sh -c 'touch " + up + "a$RANK; exec sleep 61' & (trap '' TERM; touch " +
                       up + "b$RANK; sleep 62) & [ $RANK = 0 ] && { until " + all_up +
                       "; do sleep 0.01; done; exit 1; }; wait"});
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Leftovers, AKilledLauncherLeavesNothing) {
  for (int i = 0; i < 3; ++i) {
    Program program({"run", "-n", "3", "sh", "-c", "sleep 60 & setsid sleep 61 & echo up $RANK; wait"});
    ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1") && program.wait_for("up 2"));
    // One that is just about to become another program shows no environment.
    EXPECT_TRUE(wait_until([&program] { return program.descendants().size() >= 9; }));
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.finish().status, 128 + SIGKILL);
    EXPECT_TRUE(program.leftovers().empty());
  }
}

TEST(Leftovers, ALauncherInsideALauncherLeavesNothingEither) {
  const std::string inner =
      std::string(LOCKSTEP_PROGRAM) + " run -n 2 sh -c 'setsid sleep 61 & echo up $RANK; sleep 60'";
  Program program({"run", "-n", "1", "sh", "-c", inner});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGKILL);
  program.finish();
  EXPECT_TRUE(program.leftovers().empty());
}

// The number that a worker's script wrote to `file`, once it has; -1 after 10 s.
pid_t pid_in(const std::string& file) {
  pid_t pid = -1;
  wait_until([&] { return static_cast<bool>(std::ifstream(file) >> pid); });
  return pid;
}

TEST(Leftovers, WhatLeavesItsGroupAndItsEnvironmentEndsWithTheJob) {
  for (const char* const end : {"exit 0", "exit 3", "sleep 60"}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/pid";
    Program program({"run", "-n", "1", "sh", "-c",
                     "env -i setsid sh -c '(sleep 61; :) & echo $! > " + file +
                         "; exec sleep 62' & until [ -s " + file + " ]; do sleep 0.01; done; echo up; " +
                         end});
    const pid_t escaped = pid_in(file);
    ASSERT_GT(escaped, 0);
    ASSERT_TRUE(program.wait_for("up"));
    if (std::string(end) == "sleep 60") ::kill(program.pid(), SIGTERM);
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.status, std::string(end) == "exit 0" ? 0 : std::string(end) == "exit 3" ? 1 : 143);
    EXPECT_EQ(::kill(escaped, 0), -1) << end;
    if (::kill(escaped, 0) == 0) ::kill(-::getpgid(escaped), SIGKILL);
  }
}

TEST(Leftovers, OrphansThatEndAreReapedWhileTheJobRuns) {
  const TempFolder folder;
  const std::string file = folder.path() + "/pid";
  const Outcome outcome = run({"run", "-n", "1", "sh", "-c",
                               "(setsid sh -c 'echo $$ > " + file + "; exit 0' &); until [ -s " + file +
                                   " ]; do sleep 0.01; done; while [ -e /proc/$(cat " + file +
                                   ") ]; do sleep 0.02; done; echo reaped"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "reaped\n");
}

}  // namespace
}  // namespace lockstep::test
