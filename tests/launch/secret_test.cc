// The job's secret: who has it, who is sent away without it, and that nobody is shown it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "launch/agents.h"

namespace lockstep::test {
namespace {

std::string command_line(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Agents, ShowTheSecretToNobody) {
  const Agents agents(2);
  const std::string looked = agents.secret_file() + ".looked";
  const auto start = [&](const std::string& node) {
    return Program({"run", "--nnodes", "2", "--node-rank", node, "--rdzv-endpoint", agents.endpoint(), "-n",
                    "2", "--json", "sh", "-c",
                    "echo up $RANK; echo $LOCKSTEP_SECRET > /dev/null; until [ -e " + looked +
                        " ]; do sleep 0.02; done; exit 1"},
                   {"LOCKSTEP_SECRET=" + agents.secret(), "LOCKSTEP_LOG=trace"});
  };
  Program other = start("1");
  Program lead = start("0");
  ASSERT_TRUE(lead.wait_for_error("up 0") && lead.wait_for_error("up 1") && other.wait_for_error("up 2") &&
              other.wait_for_error("up 3"));
  int seen = 0;
  for (Program* agent : {&lead, &other}) {
    std::vector<pid_t> processes = agent->descendants();
    processes.push_back(agent->pid());
    for (const pid_t pid : processes) {
      const std::string text = command_line(pid);
      seen += text.empty() ? 0 : 1;
      EXPECT_EQ(text.find(agents.secret()), std::string::npos) << text;
    }
  }
  EXPECT_GE(seen, 2 + 2 + 4);  // agents, guardians and workers
  std::ofstream(looked).put('\n');
  for (Program* agent : {&lead, &other}) {
    const Outcome outcome = agent->finish();
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ((outcome.out + outcome.err).find(agents.secret()), std::string::npos);
  }
}

TEST(Agents, WithAnotherSecretAreSentAway) {
  for (const bool plain : {false, true}) {
    const Agents agents(2);
    const Agents strangers(2);
    const std::vector<std::string> flags =
        plain ? std::vector<std::string>{"--plaintext"} : std::vector<std::string>();
    auto lead = agents.start(0, 1, "true", flags);
    std::vector<std::string> elsewhere = {"--rdzv-endpoint", agents.endpoint()};
    elsewhere.insert(elsewhere.end(), flags.begin(), flags.end());
    auto stranger = strangers.start(1, 1, "true", elsewhere);
    expect_line(stranger->finish(), 1, {agents.endpoint(), "secret", "--secret-file"});
    auto other = agents.start(1, 1, "true", flags);  // node 0 goes on waiting
    expect_well(other->finish());
    const Outcome outcome = lead->finish();
    EXPECT_EQ(outcome.status, 0);
    expect_words(outcome.err,
                 {"was turned away: it ", plain ? "another secret" : "does not know this job's secret"});
  }
}

TEST(Secret, IsMadeOnceAndForItsOwnerOnly) {
  const Outcome printed = run({"secret"});
  EXPECT_EQ(printed.status, 0);
  EXPECT_EQ(printed.out.size(), 65U);
  EXPECT_EQ(printed.out.find_first_not_of("0123456789abcdef"), 64U);
  EXPECT_NE(run({"secret"}).out, printed.out);
  EXPECT_TRUE(run({"secret", "--json"}).out.starts_with("{\"secret\":\""));

  const TempFolder folder;
  const std::string file = folder.path() + "/job.key";
  const Outcome written = run({"secret", "--out", file});
  EXPECT_EQ(written.status, 0) << written.err;
  EXPECT_EQ(written.out + written.err, "");
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_size, 65);
  expect_line(run({"secret", "--out", file}), 2, {file, "is there already"});
  expect_line(run({"secret", "--out", folder.path() + "/no/such"}), 1, {"No such file"});
  expect_line(run({"secret", "--out", ""}), 2, {"--out ''", "a new file"});
}

TEST(Secret, OfOneMachineIsRandomAndOnlyTheWorkers) {
  const Outcome outcome = run({"run", "sh", "-c", "echo $LOCKSTEP_SECRET; echo file $LOCKSTEP_SECRET_FILE"},
                              {"LOCKSTEP_SECRET=", "LOCKSTEP_SECRET_FILE=/nowhere"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<std::string> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), 64U);
  EXPECT_EQ(lines[1], "file");
  EXPECT_NE(lines_of(run({"run", "sh", "-c", "echo $LOCKSTEP_SECRET"}).out).at(0), lines[0]);
}

}  // namespace
}  // namespace lockstep::test
