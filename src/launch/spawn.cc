#include "launch/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "launch/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything the child needs, made before the fork: after it only async-signal-safe calls are allowed.
struct Prepared {
  const SpawnOptions& options;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::array<unsigned long, kMostCpus / (8 * sizeof(unsigned long))> cpus{};
  pid_t launcher = ::getpid();
};

// Gives standard descriptors above 2 a place where dup2 of another can't overwrite them.
int out_of_the_way(int fd) { return fd > 2 ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, 3); }

[[noreturn]] void become_worker(const Prepared& prepared, int report) {
  const SpawnOptions& options = prepared.options;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.launcher) ::_exit(127);  // it died before the line above
  const int in = out_of_the_way(options.in);
  const int out = out_of_the_way(options.out);
  const int err = out_of_the_way(options.err);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  // A core that went offline meanwhile is no reason not to run.
  if (!options.cpus.empty())
    ::sched_setaffinity(0, sizeof prepared.cpus, reinterpret_cast<const cpu_set_t*>(prepared.cpus.data()));
  ::sigprocmask(SIG_SETMASK, &options.signals, nullptr);
  ::execve(options.path.c_str(), prepared.arguments.data(), prepared.environment.data());
  const int error = errno;
  if (::write(report, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

}  // namespace

pid_t spawn(const SpawnOptions& options) {
  Prepared prepared{.options = options,
                    .arguments = pointers(options.arguments),
                    .environment = pointers(options.environment)};
  constexpr int bits = 8 * sizeof(unsigned long);
  for (const int cpu : options.cpus)
    if (cpu < kMostCpus) prepared.cpus[static_cast<std::size_t>(cpu / bits)] |= 1UL << (cpu % bits);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe to a worker", errno);
  UniqueFd from_child(ends[0]);
  UniqueFd to_parent(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) throw SystemError("can't start one more process", errno);
  if (pid == 0) become_worker(prepared, to_parent.get());
  ::setpgid(pid, pid);  // in both, so that it holds whoever comes first

  to_parent.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(from_child.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {  // a successful exec closes the pipe instead
    ::waitpid(pid, nullptr, 0);
    throw SystemError("program '" + options.path + "' can't be started", error);
  }
  return pid;
}

}  // namespace lockstep::launcher
