// What agents are made of, each part by itself.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <string>

#include "launch/agent_mail.h"
#include "launch/first_failure.h"
#include "launch/listening.h"
#include "launch/quiet.h"
#include "launch/slurm.h"
#include "lockstep/base/error.h"
#include "net/stream.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;

Failure worker(int node, double seconds, int exit_code, int signal = 0) {
  Failure failure{.kind = Failure::Kind::worker, .node = node, .seconds = seconds};
  failure.end.rank = node;
  failure.end.node = node;
  failure.end.exit_code = exit_code;
  failure.end.signal = signal;
  return failure;
}

Failure lost(int node, double seconds) {
  return {.kind = Failure::Kind::lost, .node = node, .seconds = seconds};
}

Failure interrupted(int node, double seconds) {
  return {.kind = Failure::Kind::interrupted, .node = node, .seconds = seconds};
}

TEST(FirstFailureOfNodes, MessagesMayTakeAWhile) {
  EXPECT_EQ(first_failure({worker(0, 1, 1), worker(1, 1.2, 0, SIGKILL)})->node, 1);
  EXPECT_EQ(first_failure({worker(0, 1, 1), worker(1, 1.3, 0, SIGKILL)})->node, 0);
  EXPECT_EQ(first_failure({worker(0, 1, 1), worker(1, 1.2, 1)})->node, 0);
}

TEST(FirstFailureOfNodes, AVanishedMachineIsNoticedLate) {
  const auto first = first_failure({worker(0, 6, 1), worker(2, 6.1, 0, SIGABRT), lost(1, 8)});
  EXPECT_EQ(first->node, 1);
  EXPECT_EQ(first->kind, Failure::Kind::lost);
  EXPECT_EQ(first_failure({worker(0, 6, 1), lost(1, 20)})->node, 0);
  EXPECT_EQ(first_failure({worker(0, 6, 0, SIGSEGV), lost(1, 7)})->node, 0);
  EXPECT_EQ(first_failure({worker(1, 6, 1), lost(1, 7)})->kind, Failure::Kind::worker);
}

TEST(FirstFailureOfNodes, AnInterruptExplainsFailuresAroundIt) {
  EXPECT_EQ(first_failure({worker(0, 6, 1), interrupted(1, 6.5)})->kind, Failure::Kind::interrupted);
  EXPECT_EQ(first_failure({worker(0, 6, 1), interrupted(1, 8)})->kind, Failure::Kind::worker);
  EXPECT_EQ(first_failure(std::vector<Failure>{}), std::nullopt);
}

TEST(FirstFailureOfNodes, IsTheOneThatTheOthersErrorsName) {
  Failure victim = worker(0, 1, 1);
  victim.end.blames = {1};
  EXPECT_EQ(first_failure({victim, worker(1, 9, 1)})->node, 1);
  EXPECT_EQ(first_failure({victim, worker(1, 9, 1), interrupted(2, 9.5)})->kind, Failure::Kind::interrupted);
}

TEST(AgentMails, ComeBackAsTheyWere) {
  Verdict verdict;
  verdict.nodes = {
      {.node = 0, .host = "a", .workers = 1},
      {.node = 1, .host = "b", .first_rank = 1, .workers = 2, .lost = "went", .interrupted_by = 2}};
  verdict.workers = {
      {.rank = 1, .node = 1, .pid = 77, .signal = 9, .core_dumped = true, .seconds = 1.5, .blames = {2}}};
  verdict.first_failed = 1;
  verdict.last_lines = {"bytes \xff", "more"};
  verdict.next_master_port = 5;
  const auto back = std::get<Verdict>(read_mail(write_mail(verdict)));
  ASSERT_EQ(back.nodes.size(), 2U);
  EXPECT_EQ(back.nodes[1].host, "b");
  EXPECT_EQ(back.nodes[1].lost, "went");
  EXPECT_EQ(back.nodes[1].interrupted_by, 2);
  ASSERT_EQ(back.workers.size(), 1U);
  EXPECT_EQ(back.workers[0].pid, 77);
  EXPECT_EQ(back.workers[0].signal, 9);
  EXPECT_TRUE(back.workers[0].core_dumped);
  EXPECT_EQ(back.workers[0].blames, std::vector<int>{2});
  EXPECT_EQ(back.first_failed, 1);
  EXPECT_EQ(back.first_failed_node, std::nullopt);
  EXPECT_EQ(back.last_lines[1], "more");
  EXPECT_TRUE(back.again());

  const Finished finished{{.workers = verdict.workers, .last_lines = {{1, {"x"}}}}};
  EXPECT_EQ(std::get<Finished>(read_mail(write_mail(finished))).end.last_lines.at(1).at(0), "x");
  EXPECT_EQ(std::get<Join>(read_mail(write_mail(Join{.nodes = 2, .workers = 3, .host = "h"}))).node,
            std::nullopt);
  EXPECT_EQ(std::get<Stop>(read_mail(write_mail(Stop{{.signal = 2}}))).order.signal, 2);
}

TEST(AgentMails, CarryTheGrace) {
  const Join join{.nodes = 2, .workers = 3, .host = "h", .grace = 1500ms};
  const auto back = std::get<Join>(read_mail(write_mail(join)));
  EXPECT_EQ(back.grace, 1500ms);
  EXPECT_TRUE(std::holds_alternative<Alive>(read_mail(write_mail(Alive{}))));
  EXPECT_TRUE(std::holds_alternative<Paused>(read_mail(write_mail(Paused{}))));
}

TEST(Quiet, OnlyCountsWhileThisAgentRuns) {
  Quiet quiet;
  Clock::time_point now{};
  quiet.pass(now);
  for (int i = 0; i < 3; ++i) quiet.pass(now += 1s);
  EXPECT_EQ(quiet.so_far(), 3s);
  quiet.pass(now += 1h);  // it was held up itself
  EXPECT_LT(quiet.so_far(), 5s);
  quiet.heard(now += 1s);
  EXPECT_EQ(quiet.so_far(), 0s);
  quiet.pass(now += 1s);
  EXPECT_EQ(quiet.so_far(), 1s);
}

TEST(AgentMails, NonsenseIsALostConnection) {
  for (const char* text :
       {"", "{", "[]", "7", "{}", R"({"is":"dance"})", R"({"is":"stop"})", R"({"is":"stop","signal":"two"})",
        R"({"is":"finished","workers":7,"last_lines":[]})"})
    EXPECT_THROW(read_mail(text), net::ConnectionLost) << text;
  EXPECT_THROW(
      read_mail(R"({"is":"alive","more":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}"),
      net::ConnectionLost);
}

// `text` with `from`, which it must hold, replaced by `to`.
std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(AgentMails, APlanThatCannotBeIsALostConnection) {
  Welcome welcome;
  welcome.job.name = std::string(32, 'a');
  welcome.job.node = 1;
  welcome.job.nodes = {{.node = 0, .host = "a", .workers = 3},
                       {.node = 1, .host = "b", .first_rank = 3, .workers = 2}};
  welcome.job.master_port = 1;
  welcome.job.threads = "4";
  const std::string good = write_mail(welcome);
  EXPECT_EQ(std::get<Welcome>(read_mail(good)).job.threads, "4");
  const std::pair<std::string, std::string> changes[] = {
      {R"("node":1,"nodes":)", R"("node":2,"nodes":)"},
      {R"("node":1,"nodes":)", R"("node":-1,"nodes":)"},
      {R"("workers":2)", R"("workers":2000000000)"},
      {R"("workers":2)", R"("workers":4294967298)"},  // 2, if cut to 32 bits
      {R"("workers":2)", R"("workers":2.5)"},
      {R"("first_rank":3)", R"("first_rank":2)"},
      {R"("master_port":1)", R"("master_port":65536)"},
      {R"("job":")" + welcome.job.name, R"("job":")"},
      {R"("job":"aaa)", R"("job":"../)"},
  };
  for (const auto& [from, to] : changes)
    EXPECT_THROW(read_mail(changed(good, from, to)), net::ConnectionLost) << from << " -> " << to;
}

TEST(AgentMails, ASignalThatIsNoneIsALostConnection) {
  for (const char* const bad : {"-9", "65", "9.0", "4294967305", "true", "null"})
    EXPECT_THROW(read_mail(changed(write_mail(Stop{{.signal = 9}}), "9", bad)), net::ConnectionLost) << bad;
}

TEST(Listening, OnThisMachineOnly) {
  EXPECT_TRUE(is_here({.host = "127.0.0.1", .port = 1}));
  EXPECT_TRUE(is_here({.host = "localhost", .port = 1}));
  EXPECT_FALSE(is_here({.host = "192.0.2.7", .port = 1}));
  EXPECT_FALSE(is_here({.host = "no.such.host.invalid", .port = 1}));
  EXPECT_EQ(listening_address({.host = "127.3.4.5", .port = 1}), "127.3.4.5");
  EXPECT_THROW(listening_address({.host = "192.0.2.7", .port = 1}), UsageError);
  EXPECT_THROW(listening_address({.host = "no.such.host.invalid", .port = 1}), SystemError);
}

TEST(Slurm, TheFirstHostOfAList) {
  const std::map<std::string, std::string> lists = {{"node1", "node1"},
                                                    {"n1,n2", "n1"},
                                                    {"node[01-03,7]", "node01"},
                                                    {"node[7,01-03]", "node7"},
                                                    {"gpu-[2,5]-ib,login", "gpu-2-ib"},
                                                    {"rack[1-2]n[08-11]", "rack1n08"},
                                                    {"a.b-c_d[3]", "a.b-c_d3"}};
  for (const auto& [list, host] : lists) EXPECT_EQ(slurm::first_host(list), host) << list;
  for (const char* bad : {"", ",n1", "node[", "node[]", "node[-3]", "node[a-b]", "no de", "$(x)", "n]1"})
    EXPECT_EQ(slurm::first_host(bad), "") << bad;
}

std::optional<SlurmNodes> nodes_of(std::map<std::string, std::string> change) {
  std::map<std::string, std::string> variables = {{"SLURM_JOB_ID", "1234"},
                                                  {"SLURM_STEP_ID", "0"},
                                                  {"SLURM_PROCID", "2"},
                                                  {"SLURM_NODEID", "2"},
                                                  {"SLURM_NNODES", "3"},
                                                  {"SLURM_STEP_NUM_TASKS", "3"},
                                                  {"SLURM_STEP_NODELIST", "node[08-10]"}};
  for (const auto& [name, value] : change) variables[name] = value;
  return slurm_nodes([&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() || found->second == "unset" ? std::nullopt : std::optional(found->second);
  });
}

TEST(Slurm, OneTaskANodeIsAnAgent) {
  const auto nodes = nodes_of({});
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->nodes, 3);
  EXPECT_EQ(nodes->node, 2);
  EXPECT_TRUE(nodes->endpoint.starts_with("node08:")) << nodes->endpoint;
  const int port = std::stoi(nodes->endpoint.substr(7));
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(nodes_of({{"SLURM_NODEID", "0"}})->endpoint, nodes->endpoint);
  EXPECT_NE(nodes_of({{"SLURM_JOB_ID", "1235"}})->endpoint, nodes->endpoint);
  EXPECT_NE(nodes_of({{"SLURM_STEP_ID", "1"}})->endpoint, nodes->endpoint);
  EXPECT_TRUE(nodes_of({{"SLURM_STEP_NUM_TASKS", "unset"}, {"SLURM_NTASKS_PER_NODE", "1"}}));
}

TEST(Slurm, AnythingElseIsByItself) {
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_ID", "unset"}}));
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_ID", "4294967291"}}));  // a batch script
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_ID", "batch"}}));
  EXPECT_FALSE(nodes_of({{"SLURM_NNODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_NUM_TASKS", "6"}}));  // two tasks a node: they are the workers
  EXPECT_FALSE(nodes_of({{"SLURM_STEP_NUM_TASKS", "unset"}}));
  EXPECT_FALSE(nodes_of({{"SLURM_NODEID", "unset"}}));
}

TEST(Slurm, NonsenseIsNamed) {
  EXPECT_THROW(nodes_of({{"SLURM_NODEID", "3"}}), UsageError);
  EXPECT_THROW(nodes_of({{"SLURM_NODEID", "x"}}), UsageError);
  EXPECT_THROW(nodes_of({{"SLURM_STEP_NODELIST", "node["}}), UsageError);
}

}  // namespace
}  // namespace lockstep::launcher
