// A disk that is slow or fails, for any program: a library to preload. DISK_FAULTS names what goes wrong:
//
//   DISK_FAULTS="fsync model.safetensors@1 delay_ms=4000; opendir /checkpoints errno=5"
//
// Each rule is a call (fsync, write, read, open, opendir, link), a piece of the path, and what then happens
// before the call, or instead of it: a delay, an error, or the end of the process (kill). "@2": only to the
// second such call of a process; without it, to every one.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <sstream>
#include <string>
#include <thread>

namespace {

struct Rule {
  std::string call;
  std::string piece;
  int only = 0;  // the number of the call, from 1; 0: all
  std::string action;
  std::atomic<int> seen = 0;
};

std::list<Rule>& rules() {
  static auto* const all = [] {  // never destroyed: calls come until the very end
    auto* const list = new std::list<Rule>;
    std::istringstream text(std::getenv("DISK_FAULTS") == nullptr ? "" : std::getenv("DISK_FAULTS"));
    for (std::string one; std::getline(text, one, ';');) {
      Rule& rule = list->emplace_back();
      std::istringstream(one) >> rule.call >> rule.piece >> rule.action;
      if (const auto at = rule.piece.rfind('@'); at != std::string::npos) {
        rule.only = std::atoi(rule.piece.c_str() + at + 1);
        rule.piece.resize(at);
      }
    }
    return list;
  }();
  return *all;
}

// True when the call is to fail; errno is set.
bool fails(const char* call, const std::string& path) {
  for (Rule& rule : rules()) {
    if (rule.call != call || path.find(rule.piece) == std::string::npos) continue;
    if (const int number = ++rule.seen; rule.only != 0 && number != rule.only) continue;
    const int value = std::atoi(rule.action.c_str() + rule.action.find('=') + 1);
    if (rule.action == "kill") ::kill(::getpid(), SIGKILL);
    if (rule.action.starts_with("delay_ms=")) std::this_thread::sleep_for(std::chrono::milliseconds(value));
    if (rule.action.starts_with("errno=")) {
      errno = value;
      return true;
    }
  }
  return false;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "";
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int open_at(int folder, const char* path, int flags, mode_t mode) {
  const char* const call = (flags & O_DIRECTORY) != 0 ? "opendir" : "open";
  if (fails(call, folder == AT_FDCWD || path[0] == '/' ? path : path_of(folder) + "/" + path)) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(list, int)) : 0;
}

}  // namespace

extern "C" {

int fsync(int fd) { return fails("fsync", path_of(fd)) ? -1 : static_cast<int>(::syscall(SYS_fsync, fd)); }

ssize_t write(int fd, const void* data, size_t size) {
  return fails("write", path_of(fd)) ? -1 : ::syscall(SYS_write, fd, data, size);
}

ssize_t read(int fd, void* data, size_t size) {
  return fails("read", path_of(fd)) ? -1 : ::syscall(SYS_read, fd, data, size);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  return fails("link", to) ? -1
                           : static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

DIR* opendir(const char* path) {
  return fails("opendir", path) ? nullptr : real<DIR*(const char*)>("opendir")(path);
}

FILE* fopen(const char* path, const char* mode) {
  return fails("open", path) ? nullptr : real<FILE*(const char*, const char*)>("fopen")(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return fails("open", path) ? nullptr : real<FILE*(const char*, const char*)>("fopen64")(path, mode);
}

#define DISK_SHIM_OPEN(name)                     \
  int name(const char* path, int flags, ...) {   \
    va_list list;                                \
    va_start(list, flags);                       \
    const mode_t mode = mode_of(flags, list);    \
    va_end(list);                                \
    return open_at(AT_FDCWD, path, flags, mode); \
  }
#define DISK_SHIM_OPENAT(name)                             \
  int name(int folder, const char* path, int flags, ...) { \
    va_list list;                                          \
    va_start(list, flags);                                 \
    const mode_t mode = mode_of(flags, list);              \
    va_end(list);                                          \
    return open_at(folder, path, flags, mode);             \
  }
DISK_SHIM_OPEN(open)
DISK_SHIM_OPEN(open64)
DISK_SHIM_OPENAT(openat)
DISK_SHIM_OPENAT(openat64)

// As glibc's checked headers call them, in which some systems' libraries are built.
int __open_2(const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char* path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char* path, int flags) { return open_at(folder, path, flags, 0); }
int __openat64_2(int folder, const char* path, int flags) { return open_at(folder, path, flags, 0); }

}  // extern "C"
