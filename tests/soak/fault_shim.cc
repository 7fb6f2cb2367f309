// Preloaded into a program, it makes one file operation below a folder fail, or kills the process just before
// it: what a failing disk and a kill at the worst moment do. The environment says which:
//   SOAK_FAULT        OP:NTH:WHAT[:on]  OP open, write, fsync, rename, mkdir, readdir or unlink; the NTH of
//   them in
//                     a process, from 1; WHAT an error's name or "kill"; "on": every later one fails too
//   SOAK_FAULT_BELOW  the folder
//   SOAK_FAULT_LOG    where a line is added for each fault (optional)
//   SOAK_FAULT_START  only in workers that were started again so often (optional)
// Operations are counted by each process alone, so a run that is repeated meets the same fault.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Fault {
  char op[16] = "";
  long nth = 0;
  int error = 0;  // 0: kill
  bool lasting = false;
  char below[PATH_MAX] = "";
  char log[PATH_MAX] = "";
};

int error_of(const char* name) {
  struct Named {
    const char* name;
    int error;
  };
  static constexpr Named kErrors[] = {
      {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EMFILE", EMFILE}, {"ESTALE", ESTALE}, {"EACCES", EACCES}};
  for (const Named& known : kErrors)
    if (std::strcmp(name, known.name) == 0) return known.error;
  return 0;
}

void copy(char* to, std::size_t room, const char* from) {
  std::snprintf(to, room, "%s", from == nullptr ? "" : from);
}

Fault read_fault() {
  Fault fault;
  const char* const text = std::getenv("SOAK_FAULT");
  const char* const start = std::getenv("SOAK_FAULT_START");
  const char* const here = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (text == nullptr) return fault;
  if (start != nullptr && (here == nullptr || std::strcmp(start, here) != 0)) return fault;
  char what[16] = "", lasting[4] = "";
  char op[16] = "";
  if (std::sscanf(text, "%15[^:]:%ld:%15[^:]:%3s", op, &fault.nth, what, lasting) < 3) return fault;
  fault.error = error_of(what);
  fault.lasting = lasting[0] != '\0';
  copy(fault.below, sizeof fault.below, std::getenv("SOAK_FAULT_BELOW"));
  copy(fault.log, sizeof fault.log, std::getenv("SOAK_FAULT_LOG"));
  if (fault.error != 0 || std::strcmp(what, "kill") == 0) copy(fault.op, sizeof fault.op, op);
  return fault;
}

const Fault& fault() {
  static const Fault chosen = read_fault();
  return chosen;
}

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// The path that `path`, relative to `folder_fd`, stands for; no link is followed.
bool is_below(int folder_fd, const char* path) {
  char whole[2 * PATH_MAX] = "";
  if (path == nullptr || path[0] != '/') {
    char link[64];
    std::snprintf(link, sizeof link, folder_fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
                  folder_fd);
    const ssize_t length = ::readlink(link, whole, PATH_MAX - 1);
    if (length <= 0) return false;
    whole[length] = '\0';
    if (path != nullptr) std::strcat(whole, "/");
  }
  if (path != nullptr) std::strncat(whole, path, PATH_MAX - 1);
  const std::size_t length = std::strlen(fault().below);
  return length > 0 && std::strncmp(whole, fault().below, length) == 0 &&
         (whole[length] == '/' || whole[length] == '\0');
}

// By system calls alone: what it tells of must not be counted itself.
void tell(const char* path) {
  if (fault().log[0] == '\0') return;
  char line[PATH_MAX + 64];
  const int length = std::snprintf(line, sizeof line, "%d %s %ld errno %d %s\n", ::getpid(), fault().op,
                                   fault().nth, fault().error, path == nullptr ? "" : path);
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, fault().log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  ::syscall(SYS_write, fd, line, length);
  ::syscall(SYS_close, fd);
}

// Whether this operation is to fail; errno then says how.
bool fails(const char* op, int folder_fd, const char* path) {
  static std::atomic<long> count{0};
  if (fault().op[0] == '\0' || std::strcmp(op, fault().op) != 0) return false;
  const int before = errno;
  const bool ours = is_below(folder_fd, path);
  errno = before;
  if (!ours) return false;
  const long now = ++count;
  if (now < fault().nth || (now > fault().nth && !fault().lasting)) return false;
  if (now == fault().nth) tell(path);
  if (fault().error == 0) ::kill(::getpid(), SIGKILL);
  errno = fault().error;
  return true;
}

}  // namespace

#define NEXT(name) next(&::name, #name)

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return fails("open", AT_FDCWD, path) ? -1 : NEXT(open)(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return fails("open", AT_FDCWD, path) ? -1 : NEXT(open64)(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return fails("open", folder, path) ? -1 : NEXT(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return fails("open", folder, path) ? -1 : NEXT(openat64)(folder, path, flags, mode);
}

// What std::ifstream and std::ofstream open with.
FILE* fopen(const char* path, const char* mode) {
  return fails("open", AT_FDCWD, path) ? nullptr : NEXT(fopen)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return fails("open", AT_FDCWD, path) ? nullptr : NEXT(fopen64)(path, mode);
}

DIR* opendir(const char* path) { return fails("open", AT_FDCWD, path) ? nullptr : NEXT(opendir)(path); }

ssize_t write(int fd, const void* bytes, size_t count) {
  return fails("write", fd, nullptr) ? -1 : NEXT(write)(fd, bytes, count);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  return fails("write", fd, nullptr) ? -1 : NEXT(writev)(fd, parts, count);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  return fails("write", fd, nullptr) ? -1 : NEXT(pwrite)(fd, bytes, count, at);
}

int fsync(int fd) { return fails("fsync", fd, nullptr) ? -1 : NEXT(fsync)(fd); }

int fdatasync(int fd) { return fails("fsync", fd, nullptr) ? -1 : NEXT(fdatasync)(fd); }

int rename(const char* from, const char* to) noexcept {
  return fails("rename", AT_FDCWD, to) ? -1 : NEXT(rename)(from, to);
}

int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  return fails("rename", to_fd, to) ? -1 : NEXT(renameat)(from_fd, from, to_fd, to);
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  return fails("rename", to_fd, to) ? -1 : NEXT(renameat2)(from_fd, from, to_fd, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", AT_FDCWD, path) ? -1 : NEXT(mkdir)(path, mode);
}

dirent* readdir(DIR* folder) {
  return fails("readdir", ::dirfd(folder), nullptr) ? nullptr : NEXT(readdir)(folder);
}

dirent64* readdir64(DIR* folder) {
  return fails("readdir", ::dirfd(folder), nullptr) ? nullptr : NEXT(readdir64)(folder);
}

int unlink(const char* path) noexcept { return fails("unlink", AT_FDCWD, path) ? -1 : NEXT(unlink)(path); }

int unlinkat(int folder, const char* path, int flags) noexcept {
  return fails("unlink", folder, path) ? -1 : NEXT(unlinkat)(folder, path, flags);
}

int rmdir(const char* path) noexcept { return fails("unlink", AT_FDCWD, path) ? -1 : NEXT(rmdir)(path); }

int remove(const char* path) noexcept { return fails("unlink", AT_FDCWD, path) ? -1 : NEXT(remove)(path); }

}  // extern "C"
