// A worker that is a process of its own, started by hand with the variables that a launcher would set.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

struct WorkerOptions {
  std::vector<std::string> arguments = {"sum"};
  std::vector<std::string> variables = {};  // "NAME=value", beside PATH and a cache that is off
  std::vector<std::pair<__rlimit_resource, rlim_t>> limits = {};
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options) {
    std::vector<std::string> words = {RANKS_PROGRAM};
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    std::vector<std::string> variables = options.variables;
    variables.emplace_back("PATH=/usr/bin:/bin");
    if (!has(variables, "LOCKSTEP_CACHE_DIR=")) variables.emplace_back("LOCKSTEP_CACHE_DIR=off");
    std::vector<char*> argv;
    std::vector<char*> envp;
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& variable : variables) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    int pipes[2] = {-1, -1};
    EXPECT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipes[1], 1);
      ::dup2(pipes[1], 2);
      for (const auto& [what, most] : options.limits) {
        const rlimit limit{most, most};
        ::setrlimit(what, &limit);
      }
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(99);
    }
    ::close(pipes[1]);
    out_ = pipes[0];
  }
  Worker(Worker&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        out_(std::exchange(other.out_, -1)),
        text_(std::move(other.text_)) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) ::close(out_);
  }

  // Everything it wrote, once it has ended by itself; a failure when that takes four minutes: one that measures
  // the machine needs half of one under a sanitizer, beside others.
  const std::string& finish() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(4);
    while (pid_ > 0) {
      pollfd ready{out_, POLLIN, 0};
      if (::poll(&ready, 1, 1000) > 0) {
        char block[4096];
        const ssize_t got = ::read(out_, block, sizeof block);
        if (got <= 0) break;
        text_.append(block, static_cast<std::size_t>(got));
      }
      if (std::chrono::steady_clock::now() < end) continue;
      ADD_FAILURE() << "a worker hangs; so far: " << text_;
      ::kill(pid_, SIGKILL);
    }
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), &status_, 0);
    return text_;
  }
  int output() const { return out_; }  // to be polled
  int status() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }

 private:
  static bool has(const std::vector<std::string>& list, const std::string& start) {
    for (const std::string& entry : list)
      if (entry.starts_with(start)) return true;
    return false;
  }

  pid_t pid_ = -1;
  int out_ = -1;
  int status_ = -1;
  std::string text_;
};

// Waits until one of the two says something, or ends: 0 or 1.
inline std::size_t first_to_speak(const Worker& zero, const Worker& one) {
  pollfd ready[2] = {{zero.output(), POLLIN, 0}, {one.output(), POLLIN, 0}};
  EXPECT_GT(::poll(ready, 2, 30'000), 0) << "neither says anything";
  return ready[0].revents != 0 ? 0 : 1;
}

// A name that no other job has.
inline std::string new_job() {
  static std::atomic<int> count{0};
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

// What `lockstep run` would set for one of `size` workers.
inline std::vector<std::string> variables_of(const std::string& job, int rank, int size,
                                             std::vector<std::string> more = {}) {
  more.push_back("LOCKSTEP_JOB=" + job);
  for (const char* name : {"RANK", "LOCAL_RANK"})
    more.push_back(std::string(name) + "=" + std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
    more.push_back(std::string(name) + "=" + std::to_string(size));
  return more;
}

// The one line of a worker that failed: exactly one, of this kind, with every part in it.
inline void expect_failure(Worker& worker, const std::string& kind, const std::vector<std::string>& parts) {
  const std::string text = worker.finish();
  EXPECT_EQ(worker.status(), 1) << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  EXPECT_TRUE(text.starts_with(kind + ":")) << kind << " in: " << text;
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

inline void expect_ok(Worker& worker, const std::string& line) {
  EXPECT_EQ(worker.finish(), "ok " + line + "\n");
  EXPECT_EQ(worker.status(), 0);
}

// A new empty folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "comm-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::testing
