#include "launch/orphans.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

#include "launch/proc_listing.h"

namespace lockstep::launcher {
namespace {

constexpr int kMostLooks = 500;
constexpr timespec kBetweenPasses{.tv_sec = 0, .tv_nsec = 2'000'000};

// The parent of a process, -1 when it is gone.
pid_t parent_of(pid_t pid, int proc) {
  const int fd = ::openat(proc, (std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[512] = {};
  const ssize_t got = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  // "pid (name) state parent …"; a name may hold anything.
  const char* const name_end = got > 0 ? std::strrchr(text, ')') : nullptr;
  int parent = -1;
  if (name_end == nullptr || std::sscanf(name_end + 1, " %*c %d", &parent) != 1) return -1;
  return parent;
}

}  // namespace

Orphans::Orphans() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  own_ = list();
}

Orphans::~Orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_); }

std::vector<pid_t> Orphans::list() const {
  std::vector<pid_t> found;
  const pid_t self = ::getpid();
  for_each_number("/proc", [&](pid_t pid, int proc) {
    if (parent_of(pid, proc) == self && std::find(own_.begin(), own_.end(), pid) == own_.end())
      found.push_back(pid);
  });
  return found;
}

void Orphans::reap() {
  for (const pid_t pid : list()) ::waitpid(pid, nullptr, WNOHANG);
}

void Orphans::kill() {
  for (int pass = 0; pass < kMostLooks; ++pass) {
    int left = 0;
    for (const pid_t pid : list()) {
      // It stays ours, and its number with it, until it is reaped here.
      const bool killed = ::kill(pid, SIGKILL) == 0;
      if (::waitpid(pid, nullptr, WNOHANG) == pid || killed) ++left;
    }
    if (left == 0) return;
    ::nanosleep(&kBetweenPasses, nullptr);
  }
}

}  // namespace lockstep::launcher
