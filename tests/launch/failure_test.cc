// lockstep run when something goes wrong: who is blamed, who is stopped, and that nothing is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "launch/harness.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Outcome run_script(int workers, const std::string& script) {
  return run({"run", "-n", std::to_string(workers), "sh", "-c", script});
}

TEST(Failure, NamesTheRankTheSignalAndItsLastLines) {
  Program program({"run", "-n", "4", "sh", "-c",
                   "if [ $RANK = 2 ]; then echo almost; echo there >&2; kill -SEGV $$; fi; sleep 60"});
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1);
  const std::size_t at = outcome.err.find("lockstep run: rank 2 failed first: it was killed by SIGSEGV");
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("    | almost\n", at), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("    | there\n", at), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("ranks 0, 1, 3 stopped by the launcher", at), std::string::npos) << outcome.err;
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Failure, ReportsTheExitCode) {
  const Outcome outcome = run_script(2, "[ $RANK = 1 ] && exit 7; sleep 60");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(outcome.err.starts_with("lockstep run: rank 1 failed first: it exited with status 7"))
      << outcome.err;
}

TEST(Failure, ASignalComesBeforeTheExitsItCauses) {
  // Rank 0 exits a little before rank 1 is killed: what survivors of a slowly dying peer look like. The
  // launcher sees both when it goes on.
  Program program({"run", "-n", "3", "sh", "-c",
                   "trap 'exit 1' USR1; echo pid $$ of $RANK.; while :; do sleep 0.02; done"});
  const pid_t survivor = program.worker(0);
  const pid_t dying = program.worker(1);
  ASSERT_TRUE(survivor > 0 && dying > 0);
  ::kill(program.pid(), SIGSTOP);
  ::kill(survivor, SIGUSR1);
  ASSERT_TRUE(wait_for_zombie(survivor));
  ::kill(dying, SIGKILL);
  ASSERT_TRUE(wait_for_zombie(dying));
  ::kill(program.pid(), SIGCONT);
  const Outcome outcome = program.finish();
  EXPECT_TRUE(outcome.err.starts_with("lockstep run: rank 1 failed first: it was killed by SIGKILL"))
      << outcome.err;
  EXPECT_NE(outcome.err.find("rank 0 exited with status 1"), std::string::npos) << outcome.err;
}

TEST(Failure, TheFirstExitIsBlamedForLaterOnes) {
  for (const char* later : {"exit 1", "kill -ABRT $$"}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/first";
    const Outcome outcome = run_script(3, "[ $RANK = 1 ] && { echo $$ > " + file + ".new; mv " + file +
                                              ".new " + file + "; exit 3; }; until [ -e " + file +
                                              " ]; do sleep 0.01; done; until grep -q ') Z' /proc/$(cat " +
                                              file + ")/stat; do sleep 0.01; done; " + later);
    EXPECT_TRUE(outcome.err.starts_with("lockstep run: rank 1 failed first: it exited with status 3"))
        << outcome.err;
  }
}

// Rank 1 threw and takes its time to die; its victims, who say so in their flight recorders, are seen first.
TEST(Failure, AVictimIsNotTheFirstFailure) {
  const std::string blame =
      "printf '{\"job\": \"%s\", \"world_rank\": %d, \"error\": {\"gone\": [1]}, "
      "\"summary\": [\"rank %d waits\"]}' $LOCKSTEP_JOB.$LOCKSTEP_RESTART $RANK $RANK > "
      "$LOCKSTEP_DUMP_DIR/flight-world-rank$RANK.json; ";
  for (const char* late : {"sleep 0.2; exit 3", "trap '' TERM; sleep 1; exit 3"}) {
    const TempFolder folder;
    const Outcome outcome = run({"run", "-n", "3", "sh", "-c",
                                 "[ $RANK = 1 ] && { echo 'no such file: weights' >&2; " + std::string(late) +
                                     "; }; sleep 0.05; " + blame + "echo rank 1 is gone >&2; exit 1"},
                                {"LOCKSTEP_DUMP_DIR=" + folder.path()});
    EXPECT_EQ(outcome.status, 1);
    const std::size_t at = outcome.err.find("lockstep run: rank 1 failed first: it exited with status 3");
    ASSERT_NE(at, std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("    | no such file: weights\n", at), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("ranks 0, 2 exited with status 1", at), std::string::npos) << outcome.err;
  }
}

TEST(Failure, DumpsOfAnotherJobBlameNobody) {
  const TempFolder folder;
  std::ofstream(folder.path() + "/flight-world-rank0.json")
      << R"({"job": "another", "world_rank": 0, "error": {"gone": [1]}})";
  std::ofstream(folder.path() + "/flight-world-rank2.json") << R"({"job": )";
  const Outcome outcome = run({"run", "-n", "2", "sh", "-c", "[ $RANK = 1 ] && sleep 0.2; exit 3"},
                              {"LOCKSTEP_DUMP_DIR=" + folder.path()});
  EXPECT_TRUE(outcome.err.starts_with("lockstep run: rank 0 failed first")) << outcome.err;
}

// A folder that the user named may hold what earlier jobs left: it does not explain this one.
TEST(Failure, DumpsOfAnotherJobAreNotShown) {
  const TempFolder folder;
  for (const char* rank : {"0", "1"})
    std::ofstream(folder.path() + "/flight-world-rank" + rank + ".json")
        << R"({"job": "another.0", "world_rank": 0, "error": null, "summary": ["long ago"]})";
  const auto fail = [&](const std::string& first) {
    return run({"run", "-n", "2", "sh", "-c", first + "exit 3"}, {"LOCKSTEP_DUMP_DIR=" + folder.path()}).err;
  };
  const std::string without = fail("");
  EXPECT_EQ(without.find("flight recorder"), std::string::npos) << without;
  const std::string with = fail(
      "[ $RANK = 1 ] || exec sleep 60; printf '{\"job\": \"%s\", \"summary\": [\"now\"]}' "
      "$LOCKSTEP_JOB.$LOCKSTEP_RESTART > $LOCKSTEP_DUMP_DIR/flight-world-rank1.json; ");
  EXPECT_NE(with.find("  flight recorder: flight-world-rank1.json in " + folder.path() + "\n    | now\n"),
            std::string::npos)
      << with;
}

TEST(Failure, AWorkerThatEndsWellLongBeforeTheOthersIsMentionedOnce) {
  const TempFolder folder;
  const std::string file = folder.path() + "/mentioned";
  Program program({"run", "-n", "2", "sh", "-c",
                   "[ $RANK = 1 ] && exit 0; until [ -e " + file + " ]; do sleep 0.02; done"});
  EXPECT_TRUE(program.wait_for_error("still runs\n"));
  std::ofstream(file).put('\n');
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "lockstep run: rank 1 ended (status 0) 5 s ago while 1 other rank still runs\n");
}

TEST(Failure, KillsWorkersThatIgnoreSigterm) {
  // The worker's own ticks measure the time that it is given: a busy machine makes both longer.
  const TempFolder folder;
  const std::string file = folder.path() + "/up";
  Program program({"run", "-n", "2", "--grace", "0.3", "sh", "-c",
                   "[ $RANK = 0 ] && { until [ -e " + file + " ]; do sleep 0.01; done; exit 1; }; " +
                       "trap 'echo told' TERM; touch " + file + "; while :; do sleep 0.1; echo tick; done"});
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1);
  const std::vector<std::string> lines = lines_of(outcome.out);
  const auto told = std::find(lines.begin(), lines.end(), "[rank 1] told");
  ASSERT_NE(told, lines.end()) << outcome.out;
  EXPECT_LT(std::count(told, lines.end(), "[rank 1] tick"), 20)
      << outcome.out;  // 5 s, the default after a failure, are 50
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Failure, KillsGrandchildrenToo) {
  Program program(
      {"run", "-n", "2", "sh", "-c",
       "sleep 60 & setsid sleep 61 & (trap '' TERM; sleep 62) & sleep 0.2; [ $RANK = 0 ] && exit 1; wait"});
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Failure, AKilledLauncherLeavesNothing) {
  for (int i = 0; i < 3; ++i) {
    Program program({"run", "-n", "3", "sh", "-c", "sleep 60 & setsid sleep 61 & echo up $RANK; wait"});
    ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1") && program.wait_for("up 2"));
    EXPECT_GE(program.descendants().size(), 9U);
    ::kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.finish().status, 128 + SIGKILL);
    EXPECT_TRUE(program.leftovers().empty());
  }
}

TEST(Failure, ALauncherInsideALauncherLeavesNothingEither) {
  const std::string inner =
      std::string(LOCKSTEP_PROGRAM) + " run -n 2 sh -c 'setsid sleep 61 & echo up $RANK; sleep 60'";
  Program program({"run", "-n", "1", "sh", "-c", inner});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGKILL);
  program.finish();
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Failure, SignalsArePassedOnAndEndTheJob) {
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

TEST(Failure, AJobThatHangsAndIsToldToStopSaysWhoWaits) {
  const TempFolder folder;
  Program program({"run", "-n", "2", "sh", "-c",
                   "echo pid $$ of $RANK.; [ $RANK = 0 ] && { " + kDumpWhenAsked + "}; sleep 60"},
                  {"TMPDIR=" + folder.path()});
  ASSERT_GT(program.worker(1), 0);
  ::kill(program.pid(), SIGTERM);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_NE(outcome.err.find("stopped by SIGTERM"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("  flight recorder: flight-world-rank0.json in " + folder.path()),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("    | rank 0 waits\n"), std::string::npos) << outcome.err;
}

TEST(Failure, AJobThatStopsProperlyLeavesNothing) {
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
TEST(Failure, WithoutAFolderForDumpsNobodyIsAsked) {
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

TEST(Failure, ASecondInterruptKillsAtOnce) {
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

TEST(Failure, SaysWhoHadToBeKilled) {
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

TEST(Failure, ASignalThatComesSeveralTimesIsOne) {
  const TempFolder folder;
  const std::string file = folder.path() + "/sent";
  Program program({"run", "-n", "2", "--grace", "60", "sh", "-c",
                   "trap 'until [ -e " + file + " ]; do sleep 0.02; done; echo saved $RANK; exit 0' TERM; " +
                       "echo up $RANK; while :; do sleep 0.02; done"});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  for (int i = 0; i < 5; ++i) {
    ::kill(program.pid(), i == 3 ? SIGINT : SIGTERM);
    ::usleep(20'000);  // that they are not merged into one by the kernel
  }
  std::ofstream(file).put('\n');
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_NE(outcome.out.find("saved 0"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("saved 1"), std::string::npos) << outcome.out;
}

TEST(Failure, ASignalEndsAJobWhoseOutputNobodyReads) {
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
TEST(Failure, ASignalWhileOnlyOutputIsLeft) {
  for (const char* const status : {"0", "1"}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/starts";
    Program program({"run", "-n", "2", "--max-restarts", "3", "sh", "-c",
                     "head -c 300000 /dev/zero | tr '\\0' x; echo $RANK >> " + file + "; exit " + status});
    ASSERT_TRUE(program.wait_until_stuck());
    ASSERT_TRUE(program.wait_for_workers_end());
    ::kill(program.pid(), SIGTERM);
    ASSERT_TRUE(wait_for_zombie(program.pid())) << status;
    EXPECT_EQ(program.finish().status, 128 + SIGTERM);
    EXPECT_EQ(lines_in(file), 2);
    EXPECT_TRUE(program.leftovers().empty());
  }
}

// As some servers start programs: then children leave no trace when they end.
TEST(Failure, EndsAreSeenWhereSigchldIsIgnored) {
  Program program({"run", "-n", "2", "sh", "-c", "exit $((3 * RANK))"}, {},
                  [] { ::signal(SIGCHLD, SIG_IGN); });
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 failed first: it exited with status 3"), std::string::npos)
      << outcome.err;
}

// The number that a worker's script wrote to `file`, once it has; -1 after 10 s.
pid_t pid_in(const std::string& file) {
  pid_t pid = -1;
  wait_until([&] { return static_cast<bool>(std::ifstream(file) >> pid); });
  return pid;
}

TEST(Failure, WhatLeavesItsGroupAndItsEnvironmentEndsWithTheJob) {
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

TEST(Failure, OrphansThatEndAreReapedWhileTheJobRuns) {
  const TempFolder folder;
  const std::string file = folder.path() + "/pid";
  const Outcome outcome = run_script(1, "(setsid sh -c 'echo $$ > " + file + "; exit 0' &); until [ -s " +
                                            file + " ]; do sleep 0.01; done; while [ -e /proc/$(cat " + file +
                                            ") ]; do sleep 0.02; done; echo reaped");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "reaped\n");
}

TEST(Failure, UserSignalsArePassedOnWithoutEndingTheJob) {
  Program program({"run", "-n", "2", "sh", "-c",
                   "trap 'echo caught; exit 0' USR1; echo up $RANK; while :; do sleep 0.05; done"});
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGUSR1);
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(Failure, RestartsTheWholeGroup) {
  const std::string script =
      "echo start $LOCKSTEP_RESTART $TORCHELASTIC_RESTART_COUNT; [ $LOCKSTEP_RESTART = 2 ] && exit 0; "
      "[ $RANK = 1 ] && exit 5; sleep 60";
  const Outcome well = run({"run", "-n", "2", "--max-restarts", "3", "sh", "-c", script});
  EXPECT_EQ(well.status, 0) << well.err;
  for (int restart = 0; restart <= 2; ++restart)
    for (int rank = 0; rank < 2; ++rank) {
      const std::string count = std::to_string(restart);
      const std::string line = "[rank " + std::to_string(rank) + "] start " + count + " " + count + "\n";
      EXPECT_NE(well.out.find(line), std::string::npos) << line;
    }
  EXPECT_NE(well.err.find("restart 2 of 3"), std::string::npos) << well.err;
  EXPECT_EQ(well.err.find("restart 3 of 3"), std::string::npos) << well.err;

  const Outcome badly = run({"run", "-n", "2", "--max_restarts=1", "sh", "-c", script});
  EXPECT_EQ(badly.status, 1);
}

TEST(Failure, ShowsTheFlightRecorder) {
  const TempFolder folder;
  const std::string dump = "printf '{\"summary\": [\"rank %s waits\"]}' $RANK > ";
  const std::string script = "mkdir -p $LOCKSTEP_DUMP_DIR; [ $RANK = 0 ] && sleep 60; [ $RANK = 1 ] && { " +
                             dump + "$LOCKSTEP_DUMP_DIR/flight-world-rank1.json; sleep 60; }; sleep 0.2; " +
                             dump + "$LOCKSTEP_DUMP_DIR/flight-world-rank2.json; exit 1";
  const Outcome outcome = run({"run", "-n", "3", "--log-dir", folder.path(), "sh", "-c", script});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("flight recorder: 2 dumps in " + folder.path()), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("    | rank 2 waits\n"), std::string::npos) << outcome.err;
}

TEST(Failure, ShowsTheEndOfARedirectedFile) {
  const TempFolder folder;
  const Outcome outcome = run({"run", "-n", "2", "--log-dir", folder.path(), "-r", "3", "sh", "-c",
                               "seq 100; [ $RANK = 1 ] && exit 1; sleep 60"});
  EXPECT_EQ(first_line(outcome.err).find("lockstep run: rank 1 failed first"), 0U) << outcome.err;
  EXPECT_NE(outcome.err.find("    | 100\n"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("    | 50\n"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace lockstep::test
