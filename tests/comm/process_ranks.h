// Processes as ranks, for tests that kill them: the test program starts itself again, once a rank, and the
// copies talk to it over pipes.
//
// A copy says lines on descriptor kSayFd. Its descriptor kStayFd reads end-of-file when the test lets it go,
// or is gone itself: nobody outlives the test.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"

namespace lockstep::testing {

inline constexpr int kSayFd = 3;
inline constexpr int kStayFd = 4;

// For the copies: one line to the test.
inline void say(std::string line) {
  line += '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::write(kSayFd, line.data() + sent, line.size() - sent);
    if (n < 0 && errno != EINTR) return;  // the test is gone, and soon this process
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
}

// For the copies: returns when the test has no more questions.
inline void stay() {
  char byte = 0;
  while (::read(kStayFd, &byte, 1) < 0 && errno == EINTR) {
  }
}

class ProcessRanks {
 public:
  struct Options {
    int size = 2;
    std::vector<std::string> arguments;                            // of every copy
    std::vector<std::pair<std::string, std::string>> environment;  // besides RANK and its kin
    std::string job;
  };

  explicit ProcessRanks(const Options& options) : ranks_(static_cast<std::size_t>(options.size)) {
    for (int r = 0; r < options.size; ++r) start(r, options);
  }
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;
  ~ProcessRanks() {  // a test that failed half way leaves nobody behind
    for (Rank& rank : ranks_)
      if (!rank.status) ::kill(rank.pid, SIGKILL);
    for (Rank& rank : ranks_)
      if (!rank.status) ::waitpid(rank.pid, nullptr, 0);
  }

  void signal(int rank, int number) const {
    if (!at(rank).status) ::kill(at(rank).pid, number);
  }
  const std::vector<std::string>& lines(int rank) const { return at(rank).lines; }
  // As waitpid gives it; none while it runs.
  std::optional<int> status(int rank) const { return at(rank).status; }
  pid_t pid(int rank) const { return at(rank).pid; }

  // Lets every rank that stays go.
  void let_go() {
    for (Rank& rank : ranks_) rank.stay.reset();
  }

  // Reads what the ranks say until `enough()`; false when the deadline comes first.
  bool listen(const std::function<bool()>& enough, const Deadline& deadline) {
    while (!enough()) {
      if (deadline.passed()) return false;
      std::vector<pollfd> polled;
      std::vector<Rank*> speakers;
      for (Rank& rank : ranks_) {
        if (!rank.say) continue;
        polled.push_back({rank.say.get(), POLLIN, 0});
        speakers.push_back(&rank);
      }
      ::poll(polled.data(), polled.size(), 5);
      for (std::size_t i = 0; i < polled.size(); ++i)
        if (polled[i].revents != 0) hear(*speakers[i]);
      reap();
    }
    return true;
  }

  bool all_ended() const {
    for (const Rank& rank : ranks_)
      if (!rank.status || rank.say) return false;
    return true;
  }

 private:
  struct Rank {
    pid_t pid = -1;
    UniqueFd say;
    UniqueFd stay;
    std::string text;  // a line not yet whole
    std::vector<std::string> lines;
    std::optional<int> status;
  };

  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  static std::pair<UniqueFd, UniqueFd> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }

  void start(int number, const Options& options) {
    auto [say_read, say_write] = make_pipe();
    auto [stay_read, stay_write] = make_pipe();
    std::vector<std::pair<std::string, std::string>> variables = options.environment;
    const std::string size = std::to_string(options.size);
    for (const char* name : {"RANK", "LOCAL_RANK"}) variables.emplace_back(name, std::to_string(number));
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) variables.emplace_back(name, size);
    variables.emplace_back("LOCKSTEP_JOB", options.job);
    std::vector<std::string> words{"/proc/self/exe"};
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      // Out of the way of 3 and 4 first: the pipes' own numbers may be those.
      const int say_fd = ::fcntl(say_write.get(), F_DUPFD, 10);
      const int stay_fd = ::fcntl(stay_read.get(), F_DUPFD, 10);
      if (::dup2(say_fd, kSayFd) < 0 || ::dup2(stay_fd, kStayFd) < 0) ::_exit(127);
      ::close(say_fd);
      ::close(stay_fd);
      ::execv(words.front().c_str(), argv.data());
      ::_exit(127);
    }
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    rank.pid = pid;
    rank.say = std::move(say_read);
    rank.stay = std::move(stay_write);
  }

  static void hear(Rank& rank) {
    char chunk[4096];
    const ssize_t n = ::read(rank.say.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) return rank.say.reset();
    rank.text.append(chunk, static_cast<std::size_t>(n));
    for (std::size_t end = 0; (end = rank.text.find('\n')) != std::string::npos; rank.text.erase(0, end + 1))
      rank.lines.push_back(rank.text.substr(0, end));
  }

  void reap() {
    for (Rank& rank : ranks_) {
      int status = 0;
      if (!rank.status && ::waitpid(rank.pid, &status, WNOHANG) == rank.pid) rank.status = status;
    }
  }

  std::vector<Rank> ranks_;
};

}  // namespace lockstep::testing
