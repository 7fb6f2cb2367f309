// How many threads the workers of lockstep run are told to have.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <string>
#include <vector>

#include "launch/agents.h"
#include "launch/harness.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

// What every worker of `lockstep run FLAGS` has in OMP_NUM_THREADS; each value once.
std::set<std::string> threads_of_workers(std::vector<std::string> flags,
                                         const std::vector<std::string>& environment = {}) {
  flags.insert(flags.begin(), "run");
  flags.insert(flags.end(), {"sh", "-c", "echo threads=$OMP_NUM_THREADS"});
  const Outcome outcome = run(flags, environment);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> seen;
  for (const std::string& line : lines_of(outcome.out)) seen.insert(line.substr(line.find('=') + 1));
  return seen;
}

TEST(Threads, TheirNumberDoesNotFollowTheNumberOfWorkers) {
  ::unsetenv("OMP_NUM_THREADS");
  using Seen = std::set<std::string>;
  const std::string each_a_core = std::to_string(available_cores());
  const std::string too_many = std::to_string(available_cores() + 1);
  for (const std::string& workers : {std::string("1"), std::string("2"), each_a_core, too_many}) {
    EXPECT_EQ(threads_of_workers({"-n", workers}), Seen{"1"}) << workers;
    EXPECT_EQ(threads_of_workers({"-n", workers}, {"OMP_NUM_THREADS=5"}), Seen{"5"}) << workers;
  }
  EXPECT_EQ(threads_of_workers({"-n", "2", "--threads", "3"}), Seen{"3"});
  EXPECT_EQ(threads_of_workers({"-n", "2", "--threads", "3"}, {"OMP_NUM_THREADS=5"}), Seen{"3"});
  EXPECT_EQ(threads_of_workers({"-n", "2", "--no-pin"}), Seen{"1"});
  EXPECT_EQ(threads_of_workers({"-n", "2"}, {"OMP_NUM_THREADS="}), Seen{"1"});
}

TEST(Threads, OnSeveralMachinesNodeZerosNumberCounts) {
  ::unsetenv("OMP_NUM_THREADS");
  const std::vector<std::string> program = {"sh", "-c", "echo threads $OMP_NUM_THREADS"};
  struct Case {
    std::vector<std::string> lead_flags, other_flags, other_environment;
    std::string threads;
    std::vector<std::string> notice;  // what the other agent says; empty: nothing
  };
  const Case cases[] = {
      {{"--threads", "3"}, {}, {}, "3", {}},
      {{"--threads", "3"}, {"--threads", "3"}, {}, "3", {}},
      {{}, {"--threads", "4"}, {}, "1", {"4 threads", "node 0 says 1", "--threads"}},
      {{"--threads", "2"}, {}, {"OMP_NUM_THREADS=8"}, "2", {"8 threads", "node 0 says 2", "OMP_NUM_THREADS"}},
  };
  for (const Case& one : cases) {
    const Agents agents(2);
    std::vector<std::string> lead_flags = {"--node-rank", "0"};
    std::vector<std::string> other_flags = {"--node-rank", "1", "-n", "2"};
    lead_flags.insert(lead_flags.end(), one.lead_flags.begin(), one.lead_flags.end());
    other_flags.insert(other_flags.end(), one.other_flags.begin(), one.other_flags.end());
    auto lead = agents.start(lead_flags, program);
    auto other = agents.start(other_flags, program, one.other_environment);
    const Outcome there = other->finish();
    expect_words(there.out,
                 {"[rank 1] threads " + one.threads + "\n", "[rank 2] threads " + one.threads + "\n"});
    if (one.notice.empty())
      expect_well(there);
    else
      expect_line(there, 0, one.notice);
    const Outcome here = lead->finish();
    expect_well(here);
    EXPECT_EQ(here.out, "[rank 0] threads " + one.threads + "\n");
  }
}

}  // namespace
}  // namespace lockstep::test
