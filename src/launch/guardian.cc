#include "launch/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

constexpr int kCleanPasses = 4;
constexpr int kMostPasses = 500;
constexpr pid_t kDismissed = -1;  // sent instead of a process group
constexpr char kMark[] = "LOCKSTEP_AGENT=";

struct DirectoryEntry {  // the kernel's linux_dirent64
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

// Whether `/proc/<pid>/environ` holds `mark`. A process of another user can't be read and isn't ours.
bool carries(const char* pid, const char* mark, std::size_t mark_bytes) {
  char path[64] = "/proc/";
  std::strncat(path, pid, 20);
  std::strncat(path, "/environ", 9);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char block[8192];
  std::size_t kept = 0;  // the end of the last block, where a mark may have begun
  bool found = false;
  while (!found) {
    const ssize_t got = ::read(fd, block + kept, sizeof block - kept);
    if (got <= 0) break;
    const std::size_t have = kept + static_cast<std::size_t>(got);
    found = ::memmem(block, have, mark, mark_bytes) != nullptr;
    kept = have < mark_bytes ? have : mark_bytes - 1;
    std::memmove(block, block + have - kept, kept);
  }
  ::close(fd);
  return found;
}

// One pass over all processes; the number it killed.
int kill_marked_once(const char* mark) {
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return 0;
  const std::size_t mark_bytes = std::strlen(mark);
  const pid_t self = ::getpid();
  int killed = 0;
  alignas(DirectoryEntry) char block[16384];
  for (;;) {
    const long got = ::syscall(SYS_getdents64, proc, block, sizeof block);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const DirectoryEntry*>(block + at);
      at += entry->length;
      const char* const name = entry->name;
      pid_t pid = 0;
      for (const char* c = name; *c >= '0' && *c <= '9'; ++c) pid = pid * 10 + (*c - '0');
      if (pid <= 1 || pid == self || !carries(name, mark, mark_bytes)) continue;
      if (::kill(pid, SIGKILL) == 0) ++killed;
    }
  }
  ::close(proc);
  return killed;
}

// A guardian of a launcher that is itself a worker must not carry that outer job's mark: the outer job's
// end would kill it together with the launcher it guards.
void clear_environment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::strncmp(*entry, kMark, sizeof kMark - 1) == 0) std::memset(*entry, 'x', std::strlen(*entry));
}

// The guardian's whole life. Only async-signal-safe calls: the launcher may have had threads.
[[noreturn]] void guard(int pipe, const char* mark, pid_t* groups, std::size_t most) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-guard");
  ::dup2(pipe, 0);
  ::close_range(1, ~0U, 0);  // above all the launcher's output, which others wait to see closed
  ::open("/dev/null", O_RDWR);
  ::open("/dev/null", O_RDWR);
  if (::chdir("/") != 0) ::_exit(1);
  clear_environment();
  std::size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = ::read(0, &group, sizeof group);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof group) break;
    if (group == kDismissed) ::_exit(0);
    if (count < most) groups[count++] = group;
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  kill_marked(mark);
  ::_exit(0);
}

}  // namespace

void kill_marked(const char* mark) {
  // A process may fork between being listed and being killed, and shows no environment for a moment while
  // it loads a new program: so until several passes in a row have found none.
  int clean = 0;
  for (int pass = 0; pass < kMostPasses && clean < kCleanPasses; ++pass) {
    clean = kill_marked_once(mark) > 0 ? 0 : clean + 1;
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    if (clean < kCleanPasses) ::nanosleep(&pause, nullptr);
  }
}

Guardian::Guardian(const std::string& mark) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe to the guardian", errno);
  UniqueFd from_launcher(ends[0]);
  to_guardian_.reset(ends[1]);
  std::vector<pid_t> groups(kMostWorkers);
  pid_ = ::fork();
  if (pid_ < 0) throw SystemError("can't start the guardian", errno);
  if (pid_ == 0) guard(from_launcher.get(), mark.c_str(), groups.data(), groups.size());
}

Guardian::~Guardian() {
  watch(kDismissed);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t process_group) {
  // SIGPIPE is blocked while a job runs; a guardian that somebody killed is not worth failing for.
  while (::write(to_guardian_.get(), &process_group, sizeof process_group) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::launcher
