#include "report/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "base/host_name.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// False: another process has it.
bool take(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  // Of the open file, not of the process: closing another descriptor of the same file gives nothing back.
  while (::fcntl(fd, F_OFD_SETLK, &whole) != 0) {
    if (errno == EINTR) continue;
    return errno != EAGAIN && errno != EACCES;
  }
  return true;
}

// Whether `fd` is still what the name stands for: its owner removes the file before it gives the lock back.
bool is_named(int fd, const fs::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(file.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

std::string owner_in(int fd) {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view line(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return std::string(line.substr(0, line.find('\n')));
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : file_(folder / kName) {
  while (true) {
    fd_.reset(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd_) throw SystemError("cannot make " + file_.string(), errno);
    if (!take(fd_.get())) {
      const std::string owner = owner_in(fd_.get());
      fd_.reset();
      throw UsageError(
          fmt::format("{} is being written by {}; accepted: another folder, or when that has ended",
                      folder.string(), owner.empty() ? "another process" : owner));
    }
    if (is_named(fd_.get(), file_)) break;
  }
  // An earlier owner's, or none's: anything else is a file of the user's.
  if (const std::string before = owner_in(fd_.get()); !before.empty() && !before.starts_with("process ")) {
    fd_.reset();
    throw UsageError(fmt::format(
        "{} is no lock of lockstep train; accepted: another folder, or move that file away", file_.string()));
  }
  const std::string owner = fmt::format("process {} on {}\n", ::getpid(), host_name());
  // For a message only: an old name there, or none, does no harm.
  if (::ftruncate(fd_.get(), 0) == 0) [[maybe_unused]]
    const ssize_t put = ::pwrite(fd_.get(), owner.data(), owner.size(), 0);
}

FolderLock::~FolderLock() { ::unlink(file_.c_str()); }

}  // namespace lockstep
