// lockstep run on several machines when something goes wrong on one of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "launch/agents.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

const char* const kLong = "echo up $RANK; exec sleep 60";

void expect_failed(const Outcome& outcome, const std::vector<std::string>& words) {
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  expect_words(outcome.err, words);
  // By its end, which is noticed at once, and not by its silence.
  EXPECT_EQ(outcome.err.find("does not answer"), std::string::npos) << outcome.err;
}

void expect_nothing_left(const Program& one, const Program& two) {
  EXPECT_TRUE(one.leftovers().empty());
  EXPECT_TRUE(two.leftovers().empty());
}

TEST(AgentsFailure, AWorkerIsNamedFirstOnEveryNode) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "sleep 60");
  auto other = agents.start(1, 2, "[ $RANK = 2 ] && { echo almost; kill -KILL $$; }; sleep 60");
  for (Program* agent : {lead.get(), other.get()}) {
    const Outcome outcome = agent->finish();
    expect_failed(outcome, {"lockstep run: rank 2 (node 1, ", "failed first: it was killed by SIGKILL",
                            "    | almost\n", "ranks 0, 1 stopped by the launcher"});
    if (agent == lead.get()) {
      EXPECT_TRUE(without_waits(outcome.err).starts_with("lockstep run: rank 2")) << outcome.err;
    }
  }
  expect_nothing_left(*lead, *other);
}

TEST(AgentsFailure, AWorkerOfNodeZeroLikewise) {
  const Agents agents(3);
  auto second = agents.start(2, 1, "sleep 60");
  auto other = agents.start(1, 1, "sleep 60");
  auto lead = agents.start(0, 2, "[ $RANK = 1 ] && exit 7; sleep 60");
  for (Program* agent : {lead.get(), other.get(), second.get()}) {
    const Outcome outcome = agent->finish();
    expect_failed(outcome, {"rank 1 (node 0, ", "exited with status 7", "ranks 0, 2, 3 stopped"});
    EXPECT_TRUE(without_waits(outcome.err).starts_with("lockstep run: rank 1")) << outcome.err;
  }
}

TEST(AgentsFailure, ASignalComesBeforeTheExitsItCausesElsewhere) {
  const Agents agents(2);
  const std::string script = "trap 'exit 1' USR1; echo pid $$ of $RANK.; while :; do sleep 0.02; done";
  auto other = agents.start(1, 1, script);
  auto lead = agents.start(0, 1, script);
  const pid_t survivor = lead->worker(0);
  const pid_t dying = other->worker(1);
  ASSERT_TRUE(survivor > 0 && dying > 0);
  // Rank 0 fails because rank 1 is about to; node 0's agent hears of both when it goes on.
  ::kill(lead->pid(), SIGSTOP);
  ::kill(survivor, SIGUSR1);
  ASSERT_TRUE(wait_for_zombie(survivor));
  ::kill(dying, SIGSEGV);
  // Its agent reaps it, and has told node 0 before that.
  ASSERT_TRUE(wait_until([dying] { return ::kill(dying, 0) != 0; }));
  ::kill(lead->pid(), SIGCONT);
  for (Program* agent : {lead.get(), other.get()})
    expect_failed(agent->finish(), {"rank 1 (node 1, ", "SIGSEGV", "rank 0 exited with status 1"});
}

TEST(AgentsFailure, EndsNodesWhoseWorkersHaveEnded) {
  const Agents agents(2);
  const std::string file = agents.secret_file() + ".ended";
  auto other = agents.start(1, 1, note_self(file));
  auto lead = agents.start(0, 1, wait_for_end(file) + "exit 3");
  for (Program* agent : {lead.get(), other.get()})
    expect_failed(agent->finish(), {"rank 0 (node 0, ", "exited with status 3", "rank 1 ended well"});
}

TEST(AgentsFailure, AKilledAgentIsNamedAndLeavesNothing) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, kLong, {"--max-restarts", "3"});
  auto other = agents.start(1, 2, "setsid sleep 61 & echo up $RANK; exec sleep 60");
  ASSERT_TRUE(lead->wait_for("up 0") && other->wait_for("up 1") && other->wait_for("up 2"));
  ::kill(other->pid(), SIGKILL);
  const Outcome outcome = lead->finish();
  expect_failed(outcome, {"lockstep run: node 1 (", "failed first: its agent ", "rank 0 stopped",
                          "ranks 1, 2 not heard of"});
  EXPECT_EQ(outcome.err.find("restart"), std::string::npos) << outcome.err;  // not with a node less
  other->finish();
  expect_nothing_left(*lead, *other);
}

TEST(AgentsFailure, AKilledLeadIsNoticedByAll) {
  const Agents agents(3);
  auto lead = agents.start(0, 1, kLong);
  auto other = agents.start(1, 1, kLong);
  auto second = agents.start(2, 1, kLong);
  ASSERT_TRUE(lead->wait_for("up 0") && other->wait_for("up 1") && second->wait_for("up 2"));
  ::kill(lead->pid(), SIGKILL);
  for (Program* agent : {other.get(), second.get()})
    expect_failed(agent->finish(), {"lockstep run: node 0 (", "failed first: its agent "});
  lead->finish();
  expect_nothing_left(*lead, *other);
  EXPECT_TRUE(second->leftovers().empty());
}

TEST(AgentsFailure, AnInterruptAnywhereEndsAll) {
  for (const int interrupted : {0, 1}) {
    const Agents agents(2);
    const std::string script =
        "trap 'echo caught INT; exit 0' INT; echo up $RANK; while :; do sleep 0.05; done";
    std::unique_ptr<Program> all[] = {agents.start(0, 1, script), agents.start(1, 1, script)};
    ASSERT_TRUE(all[0]->wait_for("up 0") && all[1]->wait_for("up 1"));
    ::kill(all[interrupted]->pid(), SIGINT);
    const Outcome here = all[interrupted]->finish();
    EXPECT_EQ(here.status, 130);
    expect_words(here.out, {"caught INT"});
    expect_words(here.err, {"lockstep run: stopped by SIGINT", "all 2 workers on 2 machines"});
    const Outcome there = all[1 - interrupted]->finish();
    expect_failed(there, {"node " + std::to_string(interrupted) + " (", "was told to stop by SIGINT"});
    expect_words(there.out, {"caught INT"});
    expect_nothing_left(*all[0], *all[1]);
  }
}

TEST(AgentsFailure, AnInterruptEndsTheOthersWhenNothingRunsHere) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, kLong);
  auto other = agents.start(1, 1, "echo up 1");
  ASSERT_TRUE(lead->wait_for("up 0") && other->wait_for("up 1") && other->wait_for_workers_end());
  ::kill(other->pid(), SIGINT);
  EXPECT_EQ(other->finish().status, 130);
  expect_failed(lead->finish(), {"node 1 (", "was told to stop by SIGINT"});
}

// Processor time that the process has used, in seconds.
double used_seconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  for (int i = 0; i < 13; ++i) file >> word;
  double user = 0;
  double system = 0;
  file >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

TEST(AgentsFailure, OneThatHangsIsGivenUp) {
  for (const int hung : {0, 1}) {
    const Agents agents(2);
    std::unique_ptr<Program> all[] = {agents.start(0, 1, kLong), agents.start(1, 1, kLong)};
    ASSERT_TRUE(all[0]->wait_for("up 0") && all[1]->wait_for("up 1"));
    ::kill(all[hung]->pid(), SIGSTOP);
    const Outcome outcome = all[1 - hung]->finish();
    const std::string node = "lockstep run: node " + std::to_string(hung) + " (";
    EXPECT_EQ(outcome.status, 1);
    EXPECT_GE(outcome.seconds, 5);
    expect_words(outcome.err,
                 {node, "failed first: its agent does not answer for ", "its workers may still run\n"});
    EXPECT_TRUE(without_waits(outcome.err).starts_with(node)) << outcome.err;
    ::kill(all[hung]->pid(), SIGCONT);
    EXPECT_EQ(all[hung]->finish().status, 1);
    expect_nothing_left(*all[0], *all[1]);
  }
}

TEST(AgentsFailure, AnInterruptDoesNotWaitForOneThatHangs) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, kLong);
  auto hung = agents.start(1, 1, kLong);
  ASSERT_TRUE(lead->wait_for("up 0") && hung->wait_for("up 1"));
  ::kill(hung->pid(), SIGSTOP);
  ::kill(lead->pid(), SIGTERM);
  const double before = used_seconds(lead->pid());
  ::usleep(2'000'000);
  EXPECT_LT(used_seconds(lead->pid()) - before, 0.5);
  const Outcome outcome = lead->finish();
  EXPECT_EQ(outcome.status, 143);
  expect_words(outcome.err, {"stopped by SIGTERM", "1 of 2 workers are ended; node 1 (",
                             "does not answer for ", ", its workers may still run\n"});
  EXPECT_EQ(lines_of(without_waits(outcome.err)).size(), 2U) << outcome.err;
}

TEST(AgentsFailure, ASecondInterruptClaimsNothingOfTheOthers) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "echo pid $$ of $RANK.; exec sleep 60");
  // Its agent is not silent, so it is not given up for that however late the second signal comes.
  auto other = agents.start(1, 1, "trap '' TERM; echo up $RANK; while :; do sleep 0.1; done");
  const pid_t worker = lead->worker(0);
  ASSERT_TRUE(worker > 0 && other->wait_for("up 1"));
  ::kill(lead->pid(), SIGTERM);
  // Reaped, not just out of sight as it is while it becomes another program: the signal was heard by then.
  ASSERT_TRUE(wait_until([worker] { return ::kill(worker, 0) != 0; }));
  std::this_thread::sleep_for(kOneStop);
  ::kill(lead->pid(), SIGTERM);
  const Outcome outcome = lead->finish();
  EXPECT_EQ(outcome.status, 143);  // the other's worker has 30 s, and was not waited for
  expect_words(outcome.err,
               {"1 of 2 workers are ended; node 1 (", "has not said so, its workers may still run\n"});
  EXPECT_EQ(outcome.err.find("does not answer"), std::string::npos) << outcome.err;
  ::kill(other->pid(), SIGKILL);
  other->finish();
  expect_nothing_left(*lead, *other);
}

TEST(AgentsFailure, OneWhoseWorkersDoNotEndIsGivenUp) {
  const Agents agents(2);
  const std::vector<std::string> flags = {"--grace", "0.2"};
  const std::string stuck = agents.secret_file() + ".stuck";
  auto lead = agents.start(0, 1, "echo up 0; until [ -e " + stuck + " ]; do sleep 0.02; done; exit 3", flags);
  // Nobody reads what its worker writes, so that agent never comes to an end: it was not told to stop by a
  // signal.
  auto other = agents.start(1, 1, "echo up 1; exec yes", flags);
  ASSERT_TRUE(lead->wait_for("up 0") && other->wait_for("up 1") && other->wait_until_stuck());
  std::ofstream(stuck).put('\n');
  const Outcome outcome = lead->finish();
  EXPECT_EQ(outcome.status, 1);
  expect_words(outcome.err, {"rank 0 (node 0, ", "exited with status 3", "did not end its workers"});
}

TEST(AgentsFailure, OneStoppedAtItsTerminalIsWaitedFor) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "echo up 0; sleep 9");
  auto other = agents.start(1, 1, "echo up 1; sleep 1");
  ASSERT_TRUE(lead->wait_for("up 0") && other->wait_for("up 1"));
  ::kill(other->pid(), SIGTSTP);
  ::usleep(8'000'000);
  ::kill(other->pid(), SIGCONT);
  for (Program* agent : {lead.get(), other.get()}) {
    const Outcome outcome = agent->finish();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
  }
}

TEST(AgentsFailure, OneThatHasFinishedWaitsWithoutWork) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "sleep 3");
  auto other = agents.start(1, 1, "echo up 1");
  ASSERT_TRUE(other->wait_for("up 1") && other->wait_for_workers_end());
  const double before = used_seconds(other->pid());
  ::usleep(1'500'000);
  EXPECT_LT(used_seconds(other->pid()) - before, 0.5);
  EXPECT_EQ(lead->finish().status, 0);
  EXPECT_EQ(other->finish().status, 0);
}

TEST(AgentsFailure, RestartsAllNodesTogether) {
  const Agents agents(2);
  // Whoever fails waits for the other: one that comes late would be stopped before it says a word.
  const std::string script =
      "echo start $LOCKSTEP_RESTART $RANK; [ $LOCKSTEP_RESTART = 2 ] && exit 0; up=" + agents.secret_file() +
      ".$LOCKSTEP_RESTART.; touch $up$RANK; " +
      "[ $RANK = $LOCKSTEP_RESTART ] && { until [ -e $up$((1 - RANK)) ]; do sleep 0.01; done; exit 5; }; "
      "sleep 60";
  auto other = agents.start(1, 1, script);
  auto lead = agents.start(0, 1, script, {"--max-restarts", "3"});  // node 0's counts
  Program* const all[] = {lead.get(), other.get()};
  for (int node = 0; node < 2; ++node) {
    const Outcome outcome = all[node]->finish();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    for (int restart = 0; restart <= 2; ++restart)
      expect_words(outcome.out, {"start " + std::to_string(restart) + " " + std::to_string(node) + "\n"});
    expect_words(outcome.err, {"rank 0 (node 0, ", "rank 1 (node 1, ", "restart 1 of 3", "restart 2 of 3"});
    EXPECT_EQ(outcome.err.find("restart 3 of 3"), std::string::npos);
  }
}

TEST(AgentsFailure, RestartsEnd) {
  const Agents agents(2);
  auto other = agents.start(1, 1, "exit 4");
  auto lead = agents.start(0, 1, "sleep 60", {"--max-restarts", "1"});
  for (Program* agent : {lead.get(), other.get()}) {
    const Outcome outcome = agent->finish();
    expect_failed(outcome, {"rank 1 (node 1, ", "restart 1 of 1"});
    EXPECT_EQ(outcome.err.find("restart 2"), std::string::npos);
  }
}

TEST(AgentsFailure, AnAgentThatCannotStartItsWorkersSaysWhy) {
  const Agents agents(2);
  const std::string broken = agents.secret_file() + ".program";
  std::ofstream(broken) << "\x7f"
                           "ELF nonsense";
  ::chmod(broken.c_str(), 0755);
  auto lead = agents.start(0, 1, "sleep 60");
  auto other = agents.start({"--node-rank", "1"}, {broken});
  EXPECT_EQ(other->finish().status, 1);
  expect_failed(lead->finish(), {"node 1 (", "gave up", "Exec format error"});
}

TEST(AgentsFailure, FilesAreNamedByRank) {
  const Agents agents(2);
  const TempFolder folder;
  const std::vector<std::string> flags = {"--log-dir", folder.path(), "--redirects", "3"};
  auto other = agents.start(1, 2, "echo out of $RANK; [ $RANK = 1 ] && exit 3; sleep 60", flags);
  auto lead = agents.start(0, 1, "echo out of $RANK; sleep 60", flags);
  for (Program* agent : {lead.get(), other.get()})
    expect_failed(agent->finish(), {"rank 1 (node 1, ", "    | out of 1\n", "logs: " + folder.path()});
}

}  // namespace
}  // namespace lockstep::test
