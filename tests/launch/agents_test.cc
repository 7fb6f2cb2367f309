// lockstep run on several machines when all goes well, and when agents are started wrongly.
#include "launch/agents.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <variant>

#include "base/repeated.h"
#include "launch/agent_line.h"
#include "launch/gathering.h"
#include "lockstep/base/clock.h"
#include "net/gate.h"

namespace lockstep::test {
namespace {

using Variables = std::map<std::string, std::string>;

// What `env` printed, by rank.
std::map<int, Variables> environments(const std::string& out) {
  std::map<int, Variables> result;
  for (const std::string& line : lines_of(out)) {
    int rank = -1;
    if (std::sscanf(line.c_str(), "[rank %d] ", &rank) != 1) continue;
    const std::string text = line.substr(line.find("] ") + 2);
    result[rank][text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return result;
}

TEST(Agents, TellWorkersWhoTheyAre) {
  const Agents agents(3);
  auto second = agents.start({"--node-rank", "2"}, {"env"});
  auto first = agents.start({"--node-rank", "1", "-n", "2"}, {"env"}, {"LOCKSTEP_SECRET_FILE=/nowhere"});
  auto lead = agents.start({"--node-rank", "0", "--max-restarts", "7"}, {"env"});
  std::string out;
  for (Program* agent : {lead.get(), first.get(), second.get()}) {
    const Outcome outcome = agent->finish();
    expect_well(outcome);
    out += outcome.out;
  }
  auto seen = environments(out);
  ASSERT_EQ(seen.size(), 4U) << out;
  const int node_of[] = {0, 1, 1, 2};
  const int local_rank_of[] = {0, 0, 1, 0};
  for (int rank = 0; rank < 4; ++rank) {
    Variables& env = seen[rank];
    EXPECT_EQ(env["RANK"], std::to_string(rank));
    EXPECT_EQ(env["ROLE_RANK"], std::to_string(rank));
    EXPECT_EQ(env["LOCAL_RANK"], std::to_string(local_rank_of[rank]));
    EXPECT_EQ(env["GROUP_RANK"], std::to_string(node_of[rank]));
    EXPECT_EQ(env["WORLD_SIZE"], "4");
    EXPECT_EQ(env["ROLE_WORLD_SIZE"], "4");
    EXPECT_EQ(env["LOCAL_WORLD_SIZE"], node_of[rank] == 1 ? "2" : "1");
    EXPECT_EQ(env["GROUP_WORLD_SIZE"], "3");
    EXPECT_EQ(env["MASTER_ADDR"], agents.host());
    EXPECT_EQ(env["MASTER_PORT"], seen[0]["MASTER_PORT"]);
    EXPECT_NE(agents.host() + ":" + env["MASTER_PORT"], agents.endpoint());
    EXPECT_EQ(env["LOCKSTEP_JOB"].size(), 32U);
    EXPECT_EQ(env["LOCKSTEP_JOB"], seen[0]["LOCKSTEP_JOB"]);
    EXPECT_EQ(env["LOCKSTEP_RESTART"], "0");
    EXPECT_EQ(env["TORCHELASTIC_MAX_RESTARTS"], "7");
    EXPECT_EQ(env["LOCKSTEP_SECRET"].size(), 64U);
    EXPECT_EQ(env["LOCKSTEP_SECRET"], seen[0]["LOCKSTEP_SECRET"]);
    EXPECT_NE(env["LOCKSTEP_SECRET"], agents.secret());
    EXPECT_EQ(env.count("LOCKSTEP_SECRET_FILE"), 0U);
    EXPECT_EQ(env.count("LOCKSTEP_TLS"), 0U);
  }
}

TEST(Agents, PlaintextIsPassedOn) {
  const Agents agents(2);
  auto other = agents.start(1, 1, "echo tls $LOCKSTEP_TLS", {"--plaintext"});
  auto lead = agents.start(0, 1, "echo tls $LOCKSTEP_TLS", {"--plaintext"});
  EXPECT_EQ(lead->finish().out, "[rank 0] tls off\n");
  EXPECT_EQ(other->finish().out, "[rank 1] tls off\n");
}

TEST(Agents, WithoutNumbersGetThemAsTheyCome) {
  const Agents agents(3);
  std::vector<std::unique_ptr<Program>> all;
  for (int i = 0; i < 3; ++i) all.push_back(agents.start({}, {"sh", "-c", "echo node $GROUP_RANK"}));
  std::set<std::string> out;
  for (auto& agent : all) {
    const Outcome outcome = agent->finish();
    expect_well(outcome);
    out.insert(outcome.out);
  }
  EXPECT_EQ(out, (std::set<std::string>{"[rank 0] node 0\n", "[rank 1] node 1\n", "[rank 2] node 2\n"}));
}

// An agent of which node 0 has let in no more than the connection.
launcher::AgentLine connected_to(const Agents& agents) {
  return launcher::AgentLine(net::dial(net::Endpoint::parse("the endpoint", agents.endpoint(), 1),
                                       launcher::agents_secret(net::Secret::parse(agents.secret())),
                                       net::Security::tls, launcher::kAgentHello,
                                       Deadline::after(kPatience)));
}

bool wait_for_stop(pid_t pid) {
  return wait_until([pid] {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::stringstream text;
    text << file.rdbuf();
    return text.str().find(") T ") != std::string::npos;
  });
}

// Node 0 finds what both say when it goes on.
TEST(Agents, OneTooManyAtTheSameMomentIsTurnedAway) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "true");
  std::vector<launcher::AgentLine> others;
  for (int i = 0; i < 2; ++i) others.push_back(connected_to(agents));
  ASSERT_EQ(::kill(lead->pid(), SIGSTOP), 0);
  ASSERT_TRUE(wait_for_stop(lead->pid()));
  for (launcher::AgentLine& other : others) other.send(launcher::Join{.nodes = 2, .workers = 1, .host = "a"});
  ASSERT_EQ(::kill(lead->pid(), SIGCONT), 0);
  int welcome = 0;
  for (launcher::AgentLine& other : others) {
    std::optional<launcher::AgentMail> answer;
    try {
      EXPECT_TRUE(wait_until([&] {
        answer = other.next();
        return answer.has_value();
      }));
    } catch (const net::ConnectionLost&) {
      // It was turned away without a word.
    }
    if (answer && std::holds_alternative<launcher::Welcome>(*answer)) ++welcome;
    if (const auto* const refused = answer ? std::get_if<launcher::Refused>(&*answer) : nullptr) {
      EXPECT_EQ(refused->why, "all 2 agents of this job are there already");
    }
  }
  EXPECT_EQ(welcome, 1);
}

TEST(Agents, FindEachOtherByMasterAddrAndPortToo) {
  const Agents agents(2);
  const std::string port = agents.endpoint().substr(agents.endpoint().find(':') + 1);
  const auto start = [&](const std::string& node) {
    return Program({"run", "--nnodes", "2", "--node_rank", node, "--master_addr", agents.host(),
                    "--master_port", port, "--secret-file", agents.secret_file(), "sh", "-c",
                    "echo $MASTER_ADDR $RANK"});
  };
  Program other = start("1");
  Program lead = start("0");
  EXPECT_EQ(lead.finish().out, "[rank 0] " + agents.host() + " 0\n");
  EXPECT_EQ(other.finish().out, "[rank 1] " + agents.host() + " 1\n");
}

TEST(Agents, StartedBySrunNeedNoFlags) {
  const Agents agents(2);
  const auto start = [&](const std::string& node) {
    // The port follows from the job's number: one that no other test has.
    return Program(
        {"run", "-n", "2", "sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR"},
        {"SLURM_JOB_ID=" + agents.secret().substr(0, 8), "SLURM_STEP_ID=0", "SLURM_PROCID=" + node,
         "SLURM_NODEID=" + node, "SLURM_NNODES=2", "SLURM_STEP_NUM_TASKS=2",
         "SLURM_STEP_NODELIST=" + agents.host() + ",other[1-2]", "LOCKSTEP_SECRET=" + agents.secret()});
  };
  Program other = start("1");
  Program lead = start("0");
  expect_words(lead.finish().out, {"[rank 0] 0 of 4 at " + agents.host(), "[rank 1] 1 of 4"});
  expect_words(other.finish().out, {"[rank 2] 2 of 4", "[rank 3] 3 of 4"});
}

TEST(Agents, WaitForTheSlowest) {
  const Agents agents(2);
  auto other = agents.start(1, 1, "true");
  auto lead = agents.start(0, 1, "sleep 0.7");
  const Outcome outcome = other->finish();
  expect_well(outcome);
  EXPECT_GT(outcome.seconds, 0.6);
  expect_well(lead->finish());
}

TEST(Agents, ReportEveryNodeAsJson) {
  const Agents agents(2);
  auto other = agents.start(1, 2, "echo hi", {"--json"});
  auto lead = agents.start(0, 1, "echo hi", {"--json"});
  for (Program* agent : {lead.get(), other.get()}) {
    const Outcome outcome = agent->finish();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    ASSERT_EQ(lines_of(outcome.out).size(), 1U) << outcome.out;
    expect_words(outcome.out,
                 {"\"ok\":true", "\"workers\":3", "\"nodes\":[{\"node\":0,", "{\"node\":1,",
                  "{\"rank\":0,\"node\":0,", "{\"rank\":1,\"node\":1,", "{\"rank\":2,\"node\":1,"});
    EXPECT_EQ(outcome.out.find(agents.secret()), std::string::npos);
  }
}

TEST(Agents, WithTlsOnOneSideOnlyAreSentAway) {
  for (const bool lead_is_plain : {false, true}) {
    const Agents agents(2);
    const std::vector<std::string> plain = {"--plaintext"};
    auto lead = agents.start(0, 1, "true", lead_is_plain ? plain : std::vector<std::string>());
    auto wrong = agents.start(1, 1, "true", lead_is_plain ? std::vector<std::string>() : plain);
    expect_line(wrong->finish(), 1, {agents.endpoint(), "--plaintext"});
    auto other = agents.start(1, 1, "true", lead_is_plain ? plain : std::vector<std::string>());
    expect_well(other->finish());
    const Outcome outcome = lead->finish();
    EXPECT_EQ(outcome.status, 0);
    expect_words(outcome.err,
                 {lead_is_plain ? "was turned away: it speaks TLS" : "was turned away: it speaks plaintext"});
  }
}

TEST(Agents, WithAnotherNumberOfRestartsAreToldThatNodeZerosCounts) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "true", {"--max-restarts", "2"});
  auto other = agents.start(1, 1, "true", {"--max-restarts", "5"});
  expect_line(other->finish(), 0, {"--max-restarts 5", "node 0 says 2"});
  expect_well(lead->finish());
}

TEST(Agents, WithAnotherNumberOfNodesAreToldSo) {
  const Agents agents(2);
  auto lead = agents.start(0, 1, "true");
  auto wrong = agents.start({"--nnodes", "3", "--node-rank", "1"}, {"true"});
  expect_line(wrong->finish(), 2, {"--nnodes 3", "--nnodes 2", "the same"});
  auto other = agents.start(1, 1, "true");
  expect_well(other->finish());
  const Outcome outcome = lead->finish();
  EXPECT_EQ(outcome.status, 0);
  expect_words(outcome.err, {"refused the agent on", "--nnodes 3"});
}

TEST(Agents, WithOneNumberTwiceAreToldSo) {
  const Agents agents(3);
  auto lead = agents.start(0, 1, "true");
  auto one = agents.start(1, 1, "true");
  auto same = agents.start(1, 1, "true");
  const auto ended = [](const auto& agent) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(agent->pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  };
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (!ended(one) && !ended(same) && !patience.passed()) ::usleep(10'000);
  auto last = agents.start(2, 1, "true");
  EXPECT_EQ(lead->finish().status, 0);
  EXPECT_EQ(last->finish().status, 0);
  Outcome first = one->finish();
  Outcome second = same->finish();
  if (first.status != 0) std::swap(first, second);  // whoever came first has it
  expect_well(first);
  expect_line(second, 2, {"--node-rank 1 is taken", "a different one"});
}

TEST(Agents, MayLeaveAndComeAgainBeforeTheJobBegins) {
  const Agents agents(3);
  auto lead = agents.start(0, 1, "true");
  // One that is killed before node 0 has heard of it is not missed: then again, after a longer while.
  bool missed = false;
  for (int wait_ms = 50; !missed && wait_ms < 10'000; wait_ms *= 2) {
    if (wait_ms > 50)
      lockstep::testing::say_repeated("an agent that was killed after " + std::to_string(wait_ms / 2) +
                                      " ms was not missed");
    auto one = agents.start(1, 1, "true");
    ::usleep(static_cast<useconds_t>(wait_ms) * 1000);
    ::kill(one->pid(), SIGKILL);
    one->finish();
    missed = lead->wait_for_error("was lost before the job began", std::chrono::milliseconds(wait_ms));
  }
  ASSERT_TRUE(missed);
  auto again = agents.start(1, 1, "true");
  auto last = agents.start(2, 1, "true");
  expect_well(again->finish());
  expect_well(last->finish());
  EXPECT_EQ(lead->finish().status, 0);
}

// Node 1 has to come before node 0 gives up. How long that takes is the machine's affair: where it was too
// late node 0 is more patient the next time.
TEST(Agents, NameWhoDidNotCome) {
  for (const char* const seconds : {"1", "4", "16"}) {
    const Agents agents(3);
    auto other = agents.start(1, 1, "true");
    auto lead = agents.start(0, 1, "true",
                             {"--rdzv-conf", std::string("timeout=900,join_timeout=") + seconds + ".2"});
    const Outcome outcome = lead->finish();
    const bool late = without_waits(outcome.err).find("nodes 1, 2 of 3") != std::string::npos;
    if (late && seconds != std::string("16")) {
      lockstep::testing::say_repeated(std::string("node 1 came later than after ") + seconds + " s");
      continue;
    }
    expect_line(outcome, 1,
                {"node 2 of 3 did not come", agents.endpoint(), std::string("within ") + seconds + " s"});
    expect_line(other->finish(), 1, {"node 0", "gave up", "node 2 of 3 did not come"});
    return;
  }
}

TEST(Agents, StartWithTheLargerNumberForNow) {
  const Agents agents(3);
  const std::vector<std::string> flags = {"--nnodes", "1:3", "--rdzv-conf", "join_timeout=0.5"};
  expect_line(agents.start(0, 1, "true", flags)->finish(), 1, {"nodes 1, 2 of 3", "--nnodes 1:3", "yet"});
  const Agents pair(2);
  auto other = pair.start(1, 1, "true", {"--nnodes", "2:2"});
  auto lead = pair.start(0, 1, "true", {"--nnodes", "1:2"});
  expect_well(other->finish());
  expect_well(lead->finish());
}

TEST(Agents, NameAnEndpointThatNobodyAnswersAt) {
  const Agents agents(2);
  expect_line(agents.start(1, 1, "true", {"--rdzv-conf", "join_timeout=0.5"})->finish(), 1,
              {"no agent of node 0", agents.endpoint()});
}

// By the kernel's list; asking by a connection would be noticed. `endpoint`: "a.b.c.d:port".
bool somebody_listens_at(const std::string& endpoint) {
  unsigned a = 0, b = 0, c = 0, d = 0, port = 0;
  std::sscanf(endpoint.c_str(), "%u.%u.%u.%u:%u", &a, &b, &c, &d, &port);
  char wanted[64];
  std::snprintf(wanted, sizeof wanted, "%02X%02X%02X%02X:%04X 00000000:0000 0A", d, c, b, a, port);
  std::ifstream file("/proc/net/tcp");
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find(wanted) != std::string::npos;
}

TEST(Agents, ListenOnlyWhereTheyAre) {
  const Agents agents(2);
  expect_line(agents.start(0, 1, "true", {"--rdzv-endpoint", "192.0.2.1:29400"})->finish(), 2,
              {"192.0.2.1:29400", "no address of this machine", "127.0.0.1 (lo)"});
  expect_line(agents.start(0, 1, "true", {"--rdzv-endpoint", "0.0.0.0:29400"})->finish(), 2,
              {"0.0.0.0:29400", "no address of this machine"});
  auto lead = agents.start(0, 1, "true");
  ASSERT_TRUE(wait_until([&agents] { return somebody_listens_at(agents.endpoint()); }));
  expect_line(agents.start(0, 1, "true")->finish(), 1,
              {agents.endpoint(), "in use", "another agent of node 0"});
  auto other = agents.start(1, 1, "true");
  EXPECT_EQ(other->finish().status, 0);
  EXPECT_EQ(lead->finish().status, 0);
}

// From here on this process, and what it executes, can't listen at a port that is for the system alone.
void give_up_low_ports() {
  // What is in the bounding set root gets back when it executes; what is inheritable comes along besides.
  ::prctl(PR_CAPBSET_DROP, CAP_NET_BIND_SERVICE, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct own[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, own) != 0) ::_exit(98);
  own[CAP_TO_INDEX(CAP_NET_BIND_SERVICE)].inheritable &= ~CAP_TO_MASK(CAP_NET_BIND_SERVICE);
  if (::syscall(SYS_capset, &header, own) != 0) ::_exit(98);
}

// Without numbers only a port that is taken means that another one is node 0's.
TEST(Agents, APortThatTheSystemRefusesIsTold) {
  int first = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first;
  if (first <= 81) GTEST_SKIP() << "anybody may listen at port 81 here (net.ipv4.ip_unprivileged_port_start)";
  const Agents agents(2);
  const std::string at = agents.host() + ":81";
  Program lead(agents.arguments({"--rdzv-endpoint", at, "--rdzv-conf", "join_timeout=2"}, {"true"}), {},
               give_up_low_ports);
  expect_line(lead.finish(), 1, {at, "Permission denied"});
}

TEST(Agents, BadFlagsAreToldWhatIsAccepted) {
  const Agents agents(2);
  const auto expect_usage = [](const std::vector<std::string>& arguments,
                               const std::vector<std::string>& words) {
    expect_line(run(arguments, {"LOCKSTEP_SECRET="}), 2, words);
  };
  const std::string& at = agents.endpoint();
  expect_usage(agents.arguments({"--node-rank", "2"}, {"true"}), {"--node-rank '2'", "0 to 1"});
  expect_usage(agents.arguments({"--node-rank", "x"}, {"true"}), {"--node-rank 'x'", "0 to 1"});
  expect_usage({"run", "--node-rank", "1", "true"}, {"--node-rank '1'", "0"});
  expect_usage({"run", "--nnodes", "0", "true"}, {"--nnodes '0'", "1 to 1024"});
  expect_usage({"run", "--nnodes", "3:2", "true"}, {"--nnodes '3:2'", "MIN:MAX"});
  expect_usage({"run", "--nnodes", "2:", "true"}, {"--nnodes '2:'", "MIN:MAX"});
  expect_usage({"run", "--nnodes", "2", "true"}, {"--rdzv-endpoint HOST:PORT"});
  expect_usage({"run", "--nnodes", "2", "--standalone", "--rdzv-endpoint", at, "true"}, {"--standalone"});
  expect_usage({"run", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", at, "true"},
               {"lockstep secret --out job.key", "--secret-file"});
  expect_usage(agents.arguments({"--rdzv-endpoint", "host:port"}, {"true"}), {"--rdzv-endpoint 'host:port'"});
  expect_usage(agents.arguments({"--rdzv-conf", "join_timeout=soon"}, {"true"}), {"join_timeout", "'soon'"});
  expect_usage(agents.arguments({"--rdzv-conf", "soon"}, {"true"}), {"--rdzv-conf 'soon'", "key=value"});
  expect_usage(agents.arguments({"--rdzv-conf", "join_timeout=1,foo=1"}, {"true"}),
               {"--rdzv-conf 'foo=1'", "join_timeout", "last_call_timeout"});
  expect_usage(agents.arguments({"--secret-file", ""}, {"true"}),
               {"--secret-file ''", "lockstep secret --out"});
  expect_usage(agents.arguments({"--node-rank", "0", "--secret-file", "/no/file"}, {"true"}),
               {"'/no/file'", "No such file", "lockstep secret --out job.key"});
  ::chmod(agents.secret_file().c_str(), 0644);
  expect_usage(agents.arguments({"--node-rank", "0"}, {"true"}), {agents.secret_file(), "chmod 600"});
}

}  // namespace
}  // namespace lockstep::test
