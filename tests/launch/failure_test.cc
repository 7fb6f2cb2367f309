// lockstep run when a worker fails: who is blamed, what is shown, and when all are started again.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>

#include "launch/harness.h"

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

// A libtorch error's backtrace is longer than what is kept, and comes behind what it is about.
TEST(Failure, TheLastLinesHaveTheExceptionAndNotItsFrames) {
  const Outcome outcome = run_script(1,
                                     "echo '  what():  a tensor of no use' >&2; for i in $(seq 40); do echo "
                                     "\"frame #$i: f + 0x1\" >&2; done; exit 3");
  const std::size_t at = outcome.err.find("its last lines:");
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("|   what():  a tensor of no use\n", at), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("frame #", at), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("frame #40"), std::string::npos) << "the console has all";
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
    const Outcome outcome =
        run_script(3, "[ $RANK = 1 ] && { " + note_self(file) + "exit 3; }; " + wait_for_end(file) + later);
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
  // Soon after them, or when all have been told to stop.
  for (const char* late : {"exit 3", "sleep 1; exit 3"}) {
    const TempFolder folder;
    const std::string file = folder.path() + "/victim";
    const std::string end = folder.path() + "/end";
    Program program(
        {"run", "-n", "3", "sh", "-c",
         "trap '' TERM; echo pid $$ of $RANK.; [ $RANK = 1 ] && { echo 'no such file: weights' >&2; " +
             wait_for_end(file + "0") + wait_for_end(file + "2") + late + "; }; " + blame +
             "echo rank 1 is gone >&2; " + note_self(file + "$RANK") + "until [ -e " + end +
             " ]; do sleep 0.01; done; exit 1"},
        {"LOCKSTEP_DUMP_DIR=" + folder.path()});
    const pid_t victims[] = {program.worker(0), program.worker(2)};
    ASSERT_TRUE(victims[0] > 0 && victims[1] > 0 && program.worker(1) > 0);
    // The launcher sees the victims' ends together: it waits for the second only as long as for rank 1.
    ::kill(program.pid(), SIGSTOP);
    std::ofstream(end).put('\n');
    for (const pid_t victim : victims) ASSERT_TRUE(wait_for_zombie(victim));
    ::kill(program.pid(), SIGCONT);
    const Outcome outcome = program.finish();
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
  const std::string file = folder.path() + "/first";
  const Outcome outcome =
      run({"run", "-n", "2", "sh", "-c",
           "[ $RANK = 0 ] && { " + note_self(file) + "exit 3; }; " + wait_for_end(file) + "exit 3"},
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

// As some servers start programs: then children leave no trace when they end.
TEST(Failure, EndsAreSeenWhereSigchldIsIgnored) {
  Program program({"run", "-n", "2", "sh", "-c", "exit $((3 * RANK))"}, {},
                  [] { ::signal(SIGCHLD, SIG_IGN); });
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 failed first: it exited with status 3"), std::string::npos)
      << outcome.err;
}

TEST(Failure, RestartsTheWholeGroup) {
  const TempFolder folder;
  // Rank 1 waits for rank 0, which would be stopped before it says a word where it comes late.
  const std::string script =
      "echo start $LOCKSTEP_RESTART $TORCHELASTIC_RESTART_COUNT; [ $LOCKSTEP_RESTART = 2 ] && exit 0; "
      "up=" +
      folder.path() + "/$LOCKSTEP_JOB.$LOCKSTEP_RESTART; " +
      "[ $RANK = 1 ] && { until [ -e $up ]; do sleep 0.01; done; exit 5; }; touch $up; sleep 60";
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
  const std::string script =
      "mkdir -p $LOCKSTEP_DUMP_DIR; [ $RANK = 0 ] && sleep 60; [ $RANK = 1 ] && { " + dump +
      "$LOCKSTEP_DUMP_DIR/flight-world-rank1.json; sleep 60; }; " +
      "until [ -s $LOCKSTEP_DUMP_DIR/flight-world-rank1.json ]; do sleep 0.01; done; " + dump +
      "$LOCKSTEP_DUMP_DIR/flight-world-rank2.json; exit 1";
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
