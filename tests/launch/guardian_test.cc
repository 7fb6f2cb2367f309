// What sees to the workers when the launcher itself is killed.
#include "launch/guardian.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "launch/close_from.h"
#include "launch/harness.h"
#include "launch/kernel_without.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {
namespace {

// How long chdir() takes, by which a guardian that is starting is recognized: it is about to clear its
// environment.
useconds_t chdir_us = 0;

}  // namespace
}  // namespace lockstep::launcher

// Stands before the C library's.
extern "C" int chdir(const char* path) noexcept {
  ::usleep(lockstep::launcher::chdir_us);
  return static_cast<int>(::syscall(SYS_chdir, path));
}

namespace lockstep::launcher {
namespace {

// Without close_range; without a listing of /proc/self/fd either.
const std::vector<std::vector<long>> kOlderKernels = {
    {}, {SYS_close_range}, {SYS_close_range, SYS_getdents64}};

// The exit status of `body` in a child process.
int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(CloseFrom, ClosesAllOnEveryKernel) {
  for (const auto& missing : kOlderKernels) {
    const int status = in_child([&missing] {
      test::without_system_calls(missing);
      const int far = ::fcntl(0, F_DUPFD, 700);  // beyond what one listing holds
      for (int i = 0; i < 400; ++i)
        if (::fcntl(0, F_DUPFD, 3) < 0) return 97;
      close_from(2);
      for (int fd = 2; fd <= far; ++fd)
        if (::fcntl(fd, F_GETFD) >= 0) return 1;
      return ::fcntl(1, F_GETFD) >= 0 ? 0 : 2;
    });
    EXPECT_EQ(status, 0) << missing.size();
  }
}

TEST(CloseFrom, AnEnormousLimitIsNotCountedThrough) {
  const int status = in_child([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    test::without_system_calls({SYS_close_range, SYS_getdents64});
    const int fd = ::fcntl(0, F_DUPFD, 100);
    ::alarm(20);
    close_from(3);
    return ::fcntl(fd, F_GETFD) < 0 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

// Whether the environment that `process` began with, as others see it, holds `text`.
bool shows(const std::string& process, const std::string& text) {
  std::ifstream file("/proc/" + process + "/environ");
  return std::string(std::istreambuf_iterator<char>(file), {}).find(text) != std::string::npos;
}

TEST(Guardian, IsBeyondTheEndOfAnOuterJobOnceItIsMade) {
  const int status = in_child([] {
    // This launcher is a worker of an outer job, whose mark was in its environment when it began.
    const std::string outer = "LOCKSTEP_AGENT=outer";
    char** entry = environ;
    while (*entry != nullptr && std::strlen(*entry) < outer.size()) ++entry;
    if (*entry == nullptr) return 97;
    std::memcpy(*entry, outer.data(), outer.size());
    if (!shows("self", outer)) return 98;
    chdir_us = 300'000;
    const Guardian guardian("LOCKSTEP_AGENT=inner");
    if (::getpgid(guardian.pid()) == ::getpgid(0)) return 1;      // the outer guardian kills this group
    return shows(std::to_string(guardian.pid()), outer) ? 2 : 0;  // and all that carry its mark
  });
  EXPECT_EQ(status, 0);
}

TEST(Guardian, LeavesNothingOfAKilledLauncherOnOlderKernels) {
  test::Program program({"run", "-n", "2", "sh", "-c", "setsid sleep 61 & echo up $RANK; sleep 60"}, {},
                        [] { test::without_system_calls({SYS_close_range}); });
  ASSERT_TRUE(program.wait_for("up 0") && program.wait_for("up 1"));
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.finish().status, 128 + SIGKILL);
  EXPECT_EQ(program.leftovers(), std::vector<pid_t>());
}

// A process at the other end of the line that says again what it is told, until the line is cut.
[[noreturn]] void echo(int line) {
  ::dup2(line, 0);
  close_from(1);  // above all a launcher's end of its guardian's pipe
  for (char word; ::read(0, &word, 1) == 1 && ::write(0, &word, 1) == 1;) {
  }
  ::_exit(0);
}

// One that is killed may not have come to its end yet, but says nothing any more.
bool answers(int line) {
  char word = '?';
  return ::send(line, &word, 1, MSG_NOSIGNAL) == 1 && ::read(line, &word, 1) == 1;
}

// A launcher with a guardian and one worker that has ended, beside a process of the same group that has not:
// it stands for a stranger's process that got the worker's number after the worker was reaped.
class KilledLauncher {
 public:
  enum class Worker { zombie, reaped };
  explicit KilledLauncher(Worker worker) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // the guardian and the stranger become children of this process
    int ends[2], line[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    launcher_ = ::fork();
    if (launcher_ == 0) be_launcher(worker, ends[1], line[1]);
    ::close(ends[1]);
    ::close(line[1]);
    line_.reset(line[0]);
    EXPECT_EQ(::read(ends[0], &stranger_, sizeof stranger_), static_cast<ssize_t>(sizeof stranger_));
    ::close(ends[0]);
  }
  ~KilledLauncher() {
    if (stranger_ > 0 && !stranger_ended_) ::kill(stranger_, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  KilledLauncher(const KilledLauncher&) = delete;
  KilledLauncher& operator=(const KilledLauncher&) = delete;

  // Once the launcher is dead and its guardian has done what it does.
  bool stranger_lives() {
    // Children are the launcher, its guardian and the stranger, and in one case the worker, whom it did not
    // reap.
    siginfo_t info{};
    while (!stranger_ended_ && children_but_the_stranger() > 0) {
      if (::waitid(P_ALL, 0, &info, WEXITED) != 0) break;
      stranger_ended_ = info.si_pid == stranger_;
    }
    return answers(line_.get());
  }

 private:
  int children_but_the_stranger() const {
    const std::string self = std::to_string(::getpid());
    FILE* const file = std::fopen(("/proc/self/task/" + self + "/children").c_str(), "r");
    int count = 0;
    for (int pid = 0; file != nullptr && std::fscanf(file, "%d", &pid) == 1;)
      count += pid != stranger_ ? 1 : 0;
    if (file != nullptr) std::fclose(file);
    return count;
  }

  [[noreturn]] static void be_launcher(Worker kind, int report, int line) {
    Guardian guardian("LOCKSTEP_AGENT=nobody." + std::to_string(::getpid()));
    int stranger_is_there[2];
    if (::pipe(stranger_is_there) != 0) ::_exit(1);
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::setpgid(0, 0);
      const pid_t stranger = ::fork();
      if (stranger == 0) echo(line);
      if (::write(stranger_is_there[1], &stranger, sizeof stranger) < 0) ::_exit(1);
      ::_exit(0);
    }
    guardian.watch(worker);
    pid_t stranger = 0;
    if (::read(stranger_is_there[0], &stranger, sizeof stranger) != sizeof stranger) ::_exit(1);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(worker), &info, WEXITED | WNOWAIT);
    if (kind == Worker::reaped) guardian.reap(worker);
    if (::write(report, &stranger, sizeof stranger) < 0) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }

  pid_t launcher_ = -1;
  pid_t stranger_ = -1;
  bool stranger_ended_ = false;
  UniqueFd line_;  // to the stranger, who says again what it is told
};

TEST(Guardian, KillsTheGroupOfAWorkerThatIsNotReaped) {
  EXPECT_FALSE(KilledLauncher(KilledLauncher::Worker::zombie).stranger_lives());
}

TEST(Guardian, ForgetsAWorkerThatIsReaped) {
  EXPECT_TRUE(KilledLauncher(KilledLauncher::Worker::reaped).stranger_lives());
}

// A process of the test's own in a group that is there.
class GroupMember {
 public:
  explicit GroupMember(pid_t group) {
    int line[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      if (::setpgid(0, group) != 0) ::_exit(1);
      echo(line[1]);
    }
    ::close(line[1]);
    line_.reset(line[0]);
  }
  ~GroupMember() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  bool lives() const { return answers(line_.get()); }

 private:
  pid_t pid_ = -1;
  UniqueFd line_;
};

// The launcher has reaped its worker and goes on: it has output to write, which nobody reads. A second
// process of the worker's group, which was killed with it and which the test does not reap, keeps the group's
// number in use, so that a stranger's may be made to have it.
TEST(Guardian, OfALauncherForgetsTheWorkersThatItReaps) {
  const test::TempFolder folder;
  const std::string go = folder.path() + "/go";
  const std::string line(63, 'x');
  test::Program program({"run", "-n", "1", "sh", "-c",
                         "echo pid $$ of $RANK.; until [ -e " + go + " ]; do sleep 0.01; done; yes " + line +
                             " | head -c 100000"});
  const pid_t worker = program.worker(0);
  ASSERT_GT(worker, 0);
  const GroupMember keeper(worker);
  ASSERT_TRUE(keeper.lives());
  std::ofstream(go).put('\n');
  ASSERT_TRUE(test::wait_until([&] { return ::kill(worker, 0) != 0 && errno == ESRCH; }));
  ASSERT_TRUE(program.wait_until_stuck());
  EXPECT_FALSE(keeper.lives());
  const GroupMember stranger(worker);
  ASSERT_TRUE(stranger.lives());
  ASSERT_EQ(program.descendants().size(), 1U) << "its guardian";
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.leftovers(), std::vector<pid_t>());
  EXPECT_TRUE(stranger.lives());
}

}  // namespace
}  // namespace lockstep::launcher
