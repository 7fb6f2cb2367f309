// Processes that find each other, and strangers that try to disturb them.
#include "comm/shm/rendezvous.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "base/free_port.h"
#include "comm/shm/door.h"
#include "comm/shm/message.h"
#include "comm/worker_process.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/fnv.h"

namespace lockstep::testing {
namespace {

// Where rank 0 of `job` listens when there is no secret.
struct Door {
  explicit Door(const std::string& job, const std::string& node = "") {
    char text[64];
    std::snprintf(text, sizeof text, "lockstep/%u/%016llx", static_cast<unsigned>(::getuid()),
                  static_cast<unsigned long long>(fnv1a(job + ".0" + node)));
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text, std::strlen(text));
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(text));
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&name); }
  sockaddr_un name{};
  socklen_t length = 0;
};

UniqueFd connect_as_stranger(const std::string& job) {
  const Door door(job);
  for (int i = 0; i < 2000; ++i) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), door.address(), door.length) == 0) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "rank 0 does not listen";
  return {};
}

void expect_sum_of_three(std::vector<Worker>& workers) {
  for (Worker& worker : workers) expect_ok(worker, "sum 6 nodes 1 local 3");
}

// Rank 0 waits for two more, strangers come, then the two: all is as if nobody had.
void expect_undisturbed(const std::function<std::vector<UniqueFd>(const std::string& job)>& strangers) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  workers.emplace_back(WorkerOptions{.variables = variables_of(job, 0, 3)});
  const auto kept = strangers(job);
  const auto start = std::chrono::steady_clock::now();
  for (int r = 1; r < 3; ++r) workers.emplace_back(WorkerOptions{.variables = variables_of(job, r, 3)});
  expect_sum_of_three(workers);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Rendezvous, SilentStrangersDoNotDisturb) {
  expect_undisturbed([](const std::string& job) {
    std::vector<UniqueFd> sockets;
    for (int i = 0; i < 30; ++i) sockets.push_back(connect_as_stranger(job));
    return sockets;
  });
}

TEST(Rendezvous, GarbageDoesNotDisturb) {
  expect_undisturbed([](const std::string& job) {
    std::vector<UniqueFd> sockets;
    for (const std::size_t bytes : {1U, 4U, 24U, 152U, 1047U, 1048U, 1049U, 4000U, 60'000U})
      for (const char fill : {'\0', 'x', '\xff'}) {
        sockets.push_back(connect_as_stranger(job));
        const std::string text(bytes, fill);
        EXPECT_EQ(::send(sockets.back().get(), text.data(), text.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes));
      }
    return sockets;
  });
}

TEST(Rendezvous, AThousandConnectionsDoNotDisturb) {
  expect_undisturbed([](const std::string& job) {
    std::vector<UniqueFd> sockets;
    for (int i = 0; i < 1000; ++i) {
      UniqueFd socket = connect_as_stranger(job);
      if (i % 3 == 0) sockets.push_back(std::move(socket));  // the others hang up
    }
    return sockets;
  });
}

enum class Squats { listening, silent };

// A process of another user that has taken the job's name, where this one may become another user.
class Squatter {
 public:
  static constexpr uid_t kUid = 65534;

  Squatter(const std::string& job, Squats how, uid_t uid, const std::string& node = "") {
    int pipes[2] = {-1, -1};
    EXPECT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const Door door(job, node);
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      const bool there = (uid == ::getuid() || ::setresuid(uid, uid, uid) == 0) &&
                         ::bind(socket, door.address(), door.length) == 0 &&
                         (how == Squats::silent || ::listen(socket, 16) == 0);
      if (there) (void)!::write(pipes[1], "x", 1);
      ::close(pipes[1]);
      for (;;) ::pause();
    }
    ::close(pipes[1]);
    char byte = 0;
    EXPECT_EQ(::read(pipes[0], &byte, 1), 1) << "it could not take the name";
    ::close(pipes[0]);
  }
  ~Squatter() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;

 private:
  pid_t pid_ = -1;
};

TEST(Rendezvous, ANameThatAnotherUserTookIsToldWithItsUid) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may make a process of another user";
  const std::string job = new_job();
  const Squatter squatter(job, Squats::listening, Squatter::kUid);
  Worker host({.variables = variables_of(job, 0, 2)});
  Worker guest({.variables = variables_of(job, 1, 2)});
  for (Worker* worker : {&host, &guest})
    expect_failure(*worker, "system", {"taken by uid 65534", "uid 0", "lockstep run"});
}

TEST(Rendezvous, ANameThatIsTakenAndDoesNotAnswer) {
  const std::string job = new_job();
  const Squatter squatter(job, Squats::silent, ::getuid());
  Worker host({.variables = variables_of(job, 0, 2)});
  expect_failure(host, "system", {"taken by a process that does not answer", "LOCKSTEP_SECRET_FILE"});
}

TEST(Rendezvous, WithASecretTheNameCannotBeGuessed) {
  const std::string job = new_job();
  const Squatter squatter(job, Squats::listening, ::getuid());
  std::vector<Worker> workers;
  for (int r = 0; r < 3; ++r)
    workers.emplace_back(
        WorkerOptions{.variables = variables_of(job, r, 3, {"LOCKSTEP_SECRET=" + std::string(64, 'a')})});
  expect_sum_of_three(workers);
}

// More descriptors than one message carries. The ranks are forks of this process, which only meet.
TEST(Rendezvous, HundredsOfProcesses) {
  constexpr int kRanks = 300;
  const std::string job = new_job();
  const auto meet = [&](int rank) {
    const shm::Met met =
        shm::rendezvous({.door = job,
                         .job = job,
                         .rank = rank,
                         .size = kRanks,
                         .shape = {.ranks = kRanks, .head_bytes = 4096, .region_bytes = 4096},
                         .timeout = std::chrono::seconds(60)});
    if (met.pidfds.size() != kRanks) return 2;
    for (int r = 0; r < kRanks; ++r)
      if (static_cast<bool>(met.pidfds[static_cast<std::size_t>(r)]) != (r != rank)) return 3;
    return 0;
  };
  std::vector<pid_t> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(::fork());
    if (ranks.back() != 0) continue;
    int status = 1;
    try {
      status = meet(r);
    } catch (const Error& error) {
      std::fprintf(stderr, "rank %d: %s\n", r, error.what());
    }
    ::_exit(status);
  }
  for (const pid_t pid : ranks) {
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
}

// What a worker says first, as far as strangers may know it.
struct FirstWord {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::int32_t rank = 1;
  std::int32_t size = 0;
  std::uint64_t region_bytes = 4096;
  cpu_set_t cores = {};
};

// A worker's connection on which it has said nothing yet.
UniqueFd come_to(const std::string& job) {
  auto socket = shm::knock_at(job, Deadline::after(std::chrono::seconds(20)));
  return socket ? std::move(*socket) : UniqueFd();
}

// One that is no worker is sent away when those before it have been let in.
void wait_until_let_in(const std::string& job) {
  const UniqueFd stranger = come_to(job);
  EXPECT_TRUE(shm::send_message(stranger.get(), "x", 1, {}));
  pollfd end{stranger.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 20'000), 1);
}

// All have come before the first of them has a core to say something.
TEST(Rendezvous, HundredsMayBeSilentAtFirst) {
  constexpr int kRanks = 200;
  const std::string job = new_job();
  std::jthread host([&] {
    EXPECT_THROW(shm::rendezvous({.door = job,
                                  .job = job,
                                  .size = kRanks,
                                  .shape = {.ranks = kRanks, .head_bytes = 4096, .region_bytes = 4096},
                                  .timeout = std::chrono::seconds(60)}),
                 UsageError);
  });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < kRanks; ++i) silent.push_back(come_to(job));
  wait_until_let_in(job);
  for (const UniqueFd& socket : silent) {
    pollfd one{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&one, 1, 0), 0) << "one was sent away before it could speak";
  }
  // Of another version: nobody has to wait for the others.
  const FirstWord other{.magic = 0x4c4b5354, .size = kRanks};
  EXPECT_TRUE(shm::send_message(silent.back().get(), &other, sizeof other, {silent.back().get()}));
}

// Rank 0, a fork of this process, is stopped while they speak: it finds all of them in one look.
TEST(Rendezvous, AllWhoSpeakAtOnceAreToldWhyTheyAreRefused) {
  constexpr int kRanks = 20;
  const std::string job = new_job();
  const pid_t host = ::fork();
  if (host == 0) {
    int status = 1;
    try {
      shm::rendezvous({.door = job,
                       .job = job,
                       .size = kRanks,
                       .shape = {.ranks = kRanks, .head_bytes = 4096, .region_bytes = 4096},
                       .timeout = std::chrono::seconds(60)});
    } catch (const UsageError&) {
      status = 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "rank 0: %s\n", error.what());
    }
    ::_exit(status);
  }
  std::vector<UniqueFd> workers;
  for (int r = 1; r < kRanks; ++r) workers.push_back(come_to(job));
  wait_until_let_in(job);
  int status = -1;
  EXPECT_EQ(::kill(host, SIGSTOP), 0);
  EXPECT_EQ(::waitpid(host, &status, WUNTRACED), host);
  ASSERT_TRUE(WIFSTOPPED(status));
  const FirstWord other{.magic = 0x4c4b5354, .size = kRanks};
  for (const UniqueFd& worker : workers)
    EXPECT_TRUE(shm::send_message(worker.get(), &other, sizeof other, {worker.get()}));
  EXPECT_EQ(::kill(host, SIGCONT), 0);
  EXPECT_EQ(::waitpid(host, &status, 0), host);
  EXPECT_EQ(status, 0);
  for (const UniqueFd& worker : workers) {
    std::string reply(4096, '\0');
    std::vector<UniqueFd> fds;
    auto got = shm::receive_message(worker.get(), reply.data(), reply.size(), fds);
    // As a worker does: where its word was not read, an error comes first.
    if (got.bytes == 0) got = shm::receive_message(worker.get(), reply.data(), reply.size(), fds);
    EXPECT_NE(reply.find("different versions of Lockstep"), std::string::npos) << got.bytes << " bytes came";
  }
}

TEST(Rendezvous, AnyOrderOfComing) {
  for (const std::vector<int>& order : {std::vector<int>{2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
    const std::string job = new_job();
    std::vector<Worker> workers;
    for (int r : order) {
      workers.emplace_back(WorkerOptions{.variables = variables_of(job, r, 3)});
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    expect_sum_of_three(workers);
  }
}

TEST(Rendezvous, AJobMayMeetAgain) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (int r = 0; r < 3; ++r)
    workers.emplace_back(WorkerOptions{.arguments = {"twice"}, .variables = variables_of(job, r, 3)});
  for (Worker& worker : workers) expect_ok(worker, "sum 6 nodes 1 local 3, sum 6 nodes 1 local 3");
}

TEST(Rendezvous, NodesMayBePretended) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (int r = 0; r < 3; ++r)
    workers.emplace_back(WorkerOptions{.variables = variables_of(job, r, 3, {"LOCKSTEP_NODE_SIZE=2"})});
  for (int r = 0; r < 3; ++r)
    expect_ok(workers[static_cast<std::size_t>(r)],
              std::string("sum 6 nodes 2 local ") + (r < 2 ? "2" : "1"));
}

// What peers posted in a sub-group's block survives the process that made the block.
// Rank 0, which made the first group's arena and door, or another one.
TEST(Processes, SurvivorsGoOnWithANewcomer) {
  for (const int victim : {0, 1}) {
    const std::string job = new_job();
    std::vector<Worker> workers;
    for (int r = 0; r < 3; ++r)
      workers.emplace_back(WorkerOptions{.arguments = {"survive", std::to_string(victim)},
                                         .variables = variables_of(job, r, 3)});
    Worker newcomer({.arguments = {"join", "3"}, .variables = variables_of(job, victim, 3)});
    for (int r = 0; r < 3; ++r)
      if (r != victim)
        expect_ok(workers[static_cast<std::size_t>(r)],
                  "lost rank " + std::to_string(victim) + ", sum 6 in second");
    expect_ok(newcomer, "sum 6 in second");
  }
}

// Two nodes of two ranks each, of which those of the second have numbers in their node that are others' in
// the world.
std::vector<Worker> workers_of_two_nodes(const std::vector<std::string>& arguments,
                                         std::vector<std::string> variables = {},
                                         const std::string& job = new_job()) {
  for (const char* one : {"LOCKSTEP_ENGINE=shm+tcp", "LOCKSTEP_NODE_SIZE=2", "MASTER_ADDR=127.0.0.1"})
    variables.emplace_back(one);
  variables.push_back("LOCKSTEP_SECRET=" + std::string(64, 'a'));
  variables.push_back("MASTER_PORT=" + std::to_string(free_port()));
  std::vector<Worker> workers;
  for (int r = 0; r < 4; ++r)
    workers.emplace_back(
        WorkerOptions{.arguments = arguments, .variables = variables_of(job, r, 4, variables)});
  return workers;
}

TEST(Rendezvous, WithASecretTheNameOfANodeCannotBeGuessed) {
  const std::string job = new_job();
  const Squatter first(job, Squats::listening, ::getuid(), ".node0");
  const Squatter second(job, Squats::listening, ::getuid(), ".node1");
  std::vector<Worker> workers = workers_of_two_nodes({"sum"}, {}, job);
  for (Worker& worker : workers) expect_ok(worker, "sum 10 nodes 2 local 2");
}

// `victim` dies inside init(), where `witness`, the other rank of its node, notices.
void expect_named_as_in_the_world(const std::string& where, int victim, int witness) {
  const std::string name = std::to_string(victim);
  std::vector<Worker> workers = workers_of_two_nodes({"die_in_init", where + ":" + name});
  expect_failure(workers[static_cast<std::size_t>(witness)], "peer " + name, {"rank " + name + " "});
}

TEST(Processes, OneThatDiesWhereANodeMeetsIsNamedAsInTheWorld) {
  expect_named_as_in_the_world("meeting", 2, 3);
}
TEST(Processes, OneThatDiesWhileANodeIsMadeIsNamedAsInTheWorld) {
  expect_named_as_in_the_world("reading", 3, 2);
}

TEST(Processes, OneThatHasNoRoomInItsNodeIsNamedAsInTheWorld) {
  std::vector<Worker> workers = workers_of_two_nodes({"allocate", "70000000"}, {"LOCKSTEP_ARENA=64M"});
  for (std::size_t r = 0; r < workers.size(); ++r)
    expect_failure(workers[r], "system", {"rank " + std::to_string(r) + "'s region of 64 MiB is smaller"});
}

TEST(Processes, TheLeaderOfASubGroupMayLeaveEverything) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (int r = 0; r < 3; ++r)
    workers.emplace_back(WorkerOptions{.arguments = {"leave_first"}, .variables = variables_of(job, r, 3)});
  for (Worker& worker : workers) expect_ok(worker, "left");
}

}  // namespace
}  // namespace lockstep::testing
