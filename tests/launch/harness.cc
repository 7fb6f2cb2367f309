#include "launch/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace lockstep::test {
namespace {

using std::chrono::steady_clock;

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string new_mark() {
  static std::atomic<int> count{0};
  return "LAUNCH_TEST_MARK=" + std::to_string(::getpid()) + "." + std::to_string(count++) + ".";
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                 const std::function<void()>& before_exec)
    : mark_(new_mark()), begin_(steady_clock::now()) {
  std::vector<std::string> words = {LOCKSTEP_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = {mark_};
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  variables.insert(variables.begin(), environment.begin(), environment.end());
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    if (before_exec) before_exec();
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(99);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const pid_t pid : descendants()) ::kill(pid, SIGKILL);
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

bool Program::read_some(std::chrono::milliseconds limit) {
  if (out_ < 0 && err_ < 0) return false;
  pollfd ready[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  ::poll(ready, 2, static_cast<int>(limit.count()));
  const auto take = [](int& fd, short events, std::string& text) {
    if (events == 0) return;
    char block[1 << 16];
    const ssize_t got = ::read(fd, block, sizeof block);
    if (got > 0) {
      text.append(block, static_cast<std::size_t>(got));
    } else {
      ::close(fd);
      fd = -1;
    }
  };
  take(out_, ready[0].revents, outcome_.out);
  take(err_, ready[1].revents, outcome_.err);
  return out_ >= 0 || err_ >= 0;
}

bool Program::wait_for(const std::string& text, const std::string& stream,
                       std::chrono::milliseconds patience) {
  const auto limit = steady_clock::now() + patience;
  while (stream.find(text) == std::string::npos) {
    if (steady_clock::now() > limit || !read_some(std::chrono::milliseconds(50))) return false;
  }
  return true;
}

pid_t Program::worker(int rank) {
  const std::string end = " of " + std::to_string(rank) + ".";
  if (!wait_for(end)) return -1;
  const std::size_t begin = outcome_.out.rfind("pid ", outcome_.out.find(end)) + 4;
  return static_cast<pid_t>(std::stol(outcome_.out.substr(begin)));
}

Outcome Program::finish(std::chrono::milliseconds limit) {
  const auto end = steady_clock::now() + limit;
  while (steady_clock::now() < end && read_some(std::chrono::milliseconds(50))) {
  }
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(pid_, &status, WNOHANG)) == 0 && steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (reaped == pid_) {
    outcome_.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
  }
  outcome_.seconds = std::chrono::duration<double>(steady_clock::now() - begin_).count();
  return outcome_;
}

std::vector<pid_t> Program::descendants() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (pid != pid_ && file_text(entry.path() / "environ").find(mark_) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> Program::leftovers() const {
  std::vector<pid_t> found = descendants();
  (void)wait_until([&] {
    found = descendants();
    return found.empty();
  });
  return found;
}

bool Program::wait_until_stuck(int stream) const {
  const int fd = stream == 1 ? out_ : err_;
  // A pipe is full when its slots are, which need not be full themselves: much is in it, and nothing is
  // added.
  const int capacity = ::fcntl(fd, F_GETPIPE_SZ);
  int before = -1;
  int unchanged = 0;
  return wait_until([&] {
    int waiting = 0;
    if (::ioctl(fd, FIONREAD, &waiting) != 0) return false;
    unchanged = waiting == before ? unchanged + 1 : 0;
    before = waiting;
    return waiting > capacity / 4 && unchanged >= 100;
  });
}

bool Program::wait_for_workers_end() const {
  return wait_until([this] {
    const std::vector<pid_t> all = descendants();
    return std::all_of(all.begin(), all.end(), [](pid_t pid) {
      return file_text("/proc/" + std::to_string(pid) + "/comm") == "lockstep-guard\n";
    });
  });
}

bool wait_until(const std::function<bool()>& holds) {
  const auto limit = steady_clock::now() + kPatience;
  while (!holds()) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool wait_for_zombie(pid_t pid) {
  return wait_until([pid] {
    return file_text("/proc/" + std::to_string(pid) + "/stat").find(") Z ") != std::string::npos;
  });
}

Outcome run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return Program(arguments, environment).finish();
}

std::string note_self(const std::string& file) {
  return "echo $$ > " + file + ".new; mv " + file + ".new " + file + "; ";  // never half written
}

std::string wait_for_end(const std::string& file) {
  const std::string process = "/proc/$(cat " + file + ")";
  return "until [ -e " + file + " ]; do sleep 0.01; done; while [ -e " + process + " ] && ! grep -qs ') Z' " +
         process + "/stat; do sleep 0.01; done; ";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "launch-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace lockstep::test
