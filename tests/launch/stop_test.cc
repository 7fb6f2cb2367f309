// lockstep run when it is told to stop: who hears of it, how long it takes, and what is said.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/repeated.h"
#include "launch/harness.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

TEST(Stop, SignalsArePassedOnAndEndTheJob) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = signal == SIGINT ? "INT" : signal == SIGTERM ? "TERM" : "HUP";
    Program program({"run", "-n", "2", "sh", "-c",
                     "trap 'echo caught " + name + "; exit 0' " + name +
                         "; echo up $RANK; while :; do sleep 0.05; done"});
    ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
    ::kill(program.pid(), signal);
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.status, 128 + signal);
    EXPECT_NE(outcome.out.find("[rank 0] caught " + name), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("[rank 1] caught " + name), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.err.find("lockstep run: stopped by SIG" + name), std::string::npos) << outcome.err;
    EXPECT_TRUE(program.leftovers().empty());
  }
}

// What a worker does that has waited when the sign appears (comm's tests have the real one).
const std::string kDumpWhenAsked =
    "until [ -e $LOCKSTEP_DUMP_DIR/stop-$LOCKSTEP_JOB.$LOCKSTEP_RESTART ]; do sleep 0.02; done; "
    "printf '{\"job\": \"%s\", \"error\": null, \"summary\": [\"rank %d waits\"]}' "
    "$LOCKSTEP_JOB.$LOCKSTEP_RESTART $RANK > "
    "$LOCKSTEP_DUMP_DIR/flight-world-rank$RANK.json; ";

TEST(Stop, AJobThatHangsAndIsToldToStopSaysWhoWaits) {
  const TempFolder folder;
  // Rank 0's shell may come to its dump only after the signal, which must not come before the sign.
  Program program(
      {"run", "-n", "2", "sh", "-c",
       "[ $RANK = 0 ] && trap 'ls $LOCKSTEP_DUMP_DIR/stop-* > /dev/null || echo told first' TERM; "
       "echo pid $$ of $RANK.; [ $RANK = 0 ] && { " +
           kDumpWhenAsked + "exit 0; }; sleep 60"},
      {"TMPDIR=" + folder.path()});
  ASSERT_TRUE(program.worker(0) > 0 && program.worker(1) > 0);
  ::kill(program.pid(), SIGTERM);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_NE(outcome.err.find("stopped by SIGTERM"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("  flight recorder: flight-world-rank0.json in " + folder.path()),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("    | rank 0 waits\n"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out.find("told first"), std::string::npos) << outcome.out;
}

TEST(Stop, AJobThatStopsProperlyLeavesNothing) {
  for (const std::string& dump : {std::string(), kDumpWhenAsked}) {
    const TempFolder folder;
    Program program({"run", "-n", "2", "sh", "-c",
                     "trap 'exit 0' TERM; echo pid $$ of $RANK.; " + dump + "while :; do sleep 0.02; done"},
                    {"TMPDIR=" + folder.path()});
    ASSERT_TRUE(program.worker(0) > 0 && program.worker(1) > 0);
    ::kill(program.pid(), SIGTERM);
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.err.find("flight recorder"), std::string::npos) << outcome.err;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << outcome.err;
  }
}

// Dumps that nobody wants need no sign, in whatever folder the job runs.
TEST(Stop, WithoutAFolderForDumpsNobodyIsAsked) {
  const TempFolder folder;
  Program program({"run", "-n", "1", "sh", "-c",
                   "cd " + folder.path() + "; trap 'ls \"$OLDPWD\" | grep ^stop-; exit 0' TERM; " +
                       "echo pid $$ of $RANK.; while :; do sleep 0.02; done"},
                  {"LOCKSTEP_DUMP_DIR="});
  ASSERT_GT(program.worker(0), 0);
  ::kill(program.pid(), SIGTERM);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.out.find("stop-"), std::string::npos) << outcome.out;
}

TEST(Stop, ASecondInterruptKillsAtOnce) {
  Program program({"run", "-n", "2", "--grace", "60", "sh", "-c",
                   "trap 'echo caught' INT; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGINT);
  ASSERT_TRUE(program.wait_for("caught"));
  std::this_thread::sleep_for(kOneStop);
  ::kill(program.pid(), SIGINT);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 130);  // long before the 60 s
  EXPECT_NE(outcome.err.find("SIGINT: the workers are told to stop and may take 60 s (--grace); once more"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("2 workers were killed by the second signal: what was not saved is lost"),
            std::string::npos)
      << outcome.err;
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Stop, SaysWhoHadToBeKilled) {
  Program program(
      {"run", "--grace", "0.3", "sh", "-c", "trap 'echo caught' HUP; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(program.wait_for("up"));
  ::kill(program.pid(), SIGHUP);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 128 + SIGHUP);
  EXPECT_NE(outcome.err.find(
                "its worker is ended; a worker was killed, because 0.3 s were over: what was not saved is "
                "lost, and a larger --grace gives more time"),
            std::string::npos)
      << outcome.err;
}

TEST(Stop, ASignalThatComesSeveralTimesIsOne) {
  // On a busy machine the last of them may come too late to be one with the first: then again.
  for (int attempts_left = 2; attempts_left >= 0; --attempts_left) {
    const TempFolder folder;
    const std::string file = folder.path() + "/sent";
    Program program({"run", "-n", "2", "--grace", "60", "sh", "-c",
                     "trap 'until [ -e " + file +
                         " ]; do sleep 0.02; done; echo saved $RANK; exit 0' TERM; " +
                         "echo up $RANK; while :; do sleep 0.02; done"});
    ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
    for (int i = 0; i < 5; ++i) {
      ::kill(program.pid(), i == 3 ? SIGINT : SIGTERM);
      ::usleep(20'000);  // that they are not merged into one by the kernel
    }
    std::ofstream(file).put('\n');
    const Outcome outcome = program.finish();
    if (attempts_left > 0 && outcome.err.find("killed by the second signal") != std::string::npos) {
      lockstep::testing::say_repeated("the last of five signals came too late to be one with the first");
      continue;
    }
    EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.err;
    EXPECT_NE(outcome.out.find("saved 0"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("saved 1"), std::string::npos) << outcome.out;
    return;
  }
}

TEST(Stop, ASignalEndsAJobWhoseOutputNobodyReads) {
  for (const int stuck : {1, 2}) {
    // With --json the workers' output goes to standard error.
    Program program({"run", "-n", "2", "--grace", "0.5", stuck == 2 ? "--json" : "--no-pin", "yes"});
    ASSERT_TRUE(program.wait_until_stuck(stuck));
    ::kill(program.pid(), SIGTERM);
    ASSERT_TRUE(wait_for_zombie(program.pid())) << stuck;
    EXPECT_EQ(program.finish().status, 128 + SIGTERM);
    EXPECT_TRUE(program.leftovers().empty());
  }
}

std::ptrdiff_t lines_in(const std::string& file) {
  std::ifstream in(file);
  return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
}

// The workers are through, well or not: the job is told to stop all the same, and is not started again.
TEST(Stop, ASignalWhileOnlyOutputIsLeft) {
  for (const char* const status : {"0", "1"}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/starts";
    // None fails before both are through: the other would be stopped.
    Program program({"run", "-n", "2", "--max-restarts", "3", "sh", "-c",
                     "head -c 300000 /dev/zero | tr '\\0' x; echo $RANK >> " + file + "; until [ $(wc -l < " +
                         file + ") -ge 2 ]; do sleep 0.01; done; exit " + status});
    ASSERT_TRUE(program.wait_until_stuck());
    ASSERT_TRUE(program.wait_for_workers_end());
    ::kill(program.pid(), SIGTERM);
    ASSERT_TRUE(wait_for_zombie(program.pid())) << status;
    EXPECT_EQ(program.finish().status, 128 + SIGTERM);
    EXPECT_EQ(lines_in(file), 2);
    EXPECT_TRUE(program.leftovers().empty());
  }
}

TEST(Stop, UserSignalsArePassedOnWithoutEndingTheJob) {
  Program program({"run", "-n", "2", "sh", "-c",
                   "trap 'echo caught; exit 0' USR1; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGUSR1);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

}  // namespace
}  // namespace lockstep::test
