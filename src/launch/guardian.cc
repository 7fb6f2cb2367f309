#include "launch/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <vector>

#include "launch/close_from.h"
#include "launch/proc_listing.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

constexpr int kCleanPasses = 4;
constexpr int kPassesForUnsettled = 60;  // in which one that loads a program shows what it is
constexpr int kMostPasses = 500;
constexpr pid_t kDismissed = 0;  // sent instead of a process group; a negative one is to be forgotten
constexpr char kReady = 'r';
constexpr char kMark[] = "LOCKSTEP_AGENT=";

// "<pid>/<file>" of the folder /proc, opened. `file` begins with '/'.
int open_of(pid_t pid, int proc, const char* file) {
  char path[32];
  char* at = path + 12;
  std::strcpy(at, file);
  for (pid_t rest = pid; rest > 0; rest /= 10) *--at = static_cast<char>('0' + rest % 10);
  return ::openat(proc, at, O_RDONLY | O_CLOEXEC);
}

// Whether a process that shows no environment is between two programs: it is neither the kernel's own nor
// about to end. One that was started without any is taken for such a one too.
bool unsettled(pid_t pid, int proc) {
  constexpr unsigned long kKernels = 0x200000, kEnding = 0x4;  // PF_KTHREAD, PF_EXITING
  const int fd = open_of(pid, proc, "/stat");
  if (fd < 0) return false;
  char text[512] = {};
  const ssize_t got = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  // "pid (name) state parent group session terminal its-group flags …"; a name may hold anything.
  const char* at = got > 0 ? std::strrchr(text, ')') : nullptr;
  for (int field = 0; at != nullptr && field < 7; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return false;
  unsigned long flags = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) flags = flags * 10 + static_cast<unsigned long>(*at - '0');
  return (flags & (kKernels | kEnding)) == 0;
}

enum class Look { carries, unsettled, other };

// Whether `/proc/<pid>/environ` holds `mark`. A process of another user can't be read and isn't ours.
Look look_at(pid_t pid, int proc, const char* mark, std::size_t mark_bytes) {
  const int fd = open_of(pid, proc, "/environ");
  if (fd < 0) return Look::other;
  char block[8192];
  std::size_t kept = 0;  // the end of the last block, where a mark may have begun
  bool found = false, any = false;
  while (!found) {
    const ssize_t got = ::read(fd, block + kept, sizeof block - kept);
    if (got <= 0) break;
    any = true;
    const std::size_t have = kept + static_cast<std::size_t>(got);
    found = ::memmem(block, have, mark, mark_bytes) != nullptr;
    kept = have < mark_bytes ? have : mark_bytes - 1;
    std::memmove(block, block + have - kept, kept);
  }
  ::close(fd);
  return found ? Look::carries : any || !unsettled(pid, proc) ? Look::other : Look::unsettled;
}

struct Pass {
  int killed = 0;
  int unsettled = 0;
};

// One pass over all processes.
Pass kill_marked_once(const char* mark) {
  const std::size_t mark_bytes = std::strlen(mark);
  const pid_t self = ::getpid();
  Pass pass;
  for_each_number("/proc", [&](pid_t pid, int proc) {
    if (pid <= 1 || pid == self) return;
    const Look look = look_at(pid, proc, mark, mark_bytes);
    if (look == Look::unsettled) ++pass.unsettled;
    if (look == Look::carries && ::kill(pid, SIGKILL) == 0) ++pass.killed;
  });
  return pass;
}

// A guardian of a launcher that is itself a worker must not carry that outer job's mark: the outer job's
// end would kill it together with the launcher it guards.
void clear_environment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::strncmp(*entry, kMark, sizeof kMark - 1) == 0) std::memset(*entry, 'x', std::strlen(*entry));
}

// The guardian's whole life. Only async-signal-safe calls: the launcher may have had threads.
[[noreturn]] void guard(int pipe, int ready, const char* mark, pid_t* groups, std::size_t most) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-guard");
  ::dup2(pipe, 0);
  ::dup2(ready, 1);
  // Above all its own copy of the launcher's end of the pipe, which would keep the pipe open for ever, and
  // the launcher's output, which others wait to see closed.
  close_from(2);
  ::open("/dev/null", O_RDWR);
  if (::chdir("/") != 0) ::_exit(1);
  clear_environment();
  if (::write(1, &kReady, sizeof kReady) != sizeof kReady) ::_exit(1);  // the launcher has died
  ::dup2(2, 1);
  std::size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = ::read(0, &group, sizeof group);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof group) break;
    if (group == kDismissed) ::_exit(0);
    if (group < 0) {
      for (std::size_t i = 0; i < count; ++i)
        if (groups[i] == -group) groups[i--] = groups[--count];
    } else if (count < most) {
      groups[count++] = group;
    }
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  kill_marked(mark);
  ::_exit(0);
}

}  // namespace

void kill_marked(const char* mark) {
  // A process may fork between being listed and being killed: so until several passes in a row have found
  // none. While it loads a new program it shows no environment, on a busy machine for some time: so more of
  // them where there is one like that.
  int clean = 0;
  for (int pass = 0, needed = kCleanPasses; pass < kMostPasses && clean < needed; ++pass) {
    const Pass now = kill_marked_once(mark);
    clean = now.killed > 0 ? 0 : clean + 1;
    needed = now.unsettled > 0 ? kPassesForUnsettled : kCleanPasses;
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    if (clean < needed) ::nanosleep(&pause, nullptr);
  }
}

Guardian::Guardian(const std::string& mark) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe to the guardian", errno);
  UniqueFd from_launcher(ends[0]);
  to_guardian_.reset(ends[1]);
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe from the guardian", errno);
  const UniqueFd from_guardian(ends[0]);
  UniqueFd to_launcher(ends[1]);
  std::vector<pid_t> groups(kMostWorkers);
  pid_ = ::fork();
  if (pid_ < 0) throw SystemError("can't start the guardian", errno);
  if (pid_ == 0) guard(from_launcher.get(), to_launcher.get(), mark.c_str(), groups.data(), groups.size());
  to_launcher.reset();
  // Until it has left the launcher's process group and cleared its environment, the end of an outer job kills
  // it together with the launcher, and what workers had started in groups of their own would stay.
  char word = 0;
  ssize_t got = 0;
  while ((got = ::read(from_guardian.get(), &word, sizeof word)) < 0 && errno == EINTR) {
  }
  if (got == sizeof word) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  throw SystemError("the guardian of the workers ended as it started");
}

Guardian::~Guardian() {
  tell(kDismissed);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t process_group) { tell(process_group); }

void Guardian::reap(pid_t leader) {
  // In this order: the pipe keeps it, so however soon the launcher dies, its guardian has forgotten the
  // number before it sees the pipe's end.
  tell(-leader);
  while (::waitpid(leader, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::tell(pid_t word) {
  // SIGPIPE is blocked while a job runs; a guardian that somebody killed is not worth failing for.
  while (::write(to_guardian_.get(), &word, sizeof word) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::launcher
