#include "base/lock_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/host_name.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOwner = "process ";

enum class Found { free, without_locks, written, read, another_users };

struct Attempt {
  Found found = Found::free;
  UniqueFd fd;        // holds the lock where it was free
  uid_t another = 0;  // whose file it is, where it is another user's

  bool taken() const { return found == Found::free || found == Found::without_locks; }
};

Found lock_whole(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  // Of the open file, not of the process: closing another descriptor of the same file gives nothing back.
  while (::fcntl(fd, F_OFD_SETLK, &whole) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) return Found::without_locks;
    struct flock other = whole;
    if (::fcntl(fd, F_OFD_GETLK, &other) != 0) return Found::written;
    if (other.l_type != F_UNLCK) return other.l_type == F_RDLCK ? Found::read : Found::written;
  }
  return Found::free;
}

// Whether `fd` is still what the name stands for: its owner removes the file before it gives the lock back.
bool is_named(int fd, const fs::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(file.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

Attempt attempt(const fs::path& file) {
  while (true) {
    Attempt made;
    made.fd.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made.fd) {
      const int why = errno;
      struct stat there {};
      if (why == EACCES && ::lstat(file.c_str(), &there) == 0 && there.st_uid != ::geteuid())
        return {.found = Found::another_users, .fd = {}, .another = there.st_uid};
      throw SystemError("cannot make " + file.string(), why);
    }
    made.found = lock_whole(made.fd.get());
    if (!made.taken() || is_named(made.fd.get(), file)) return made;
  }
}

std::string owner_in(int fd) {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view line(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return std::string(line.substr(0, line.find('\n')));
}

void write_owner(int fd) {
  const std::string owner = std::string(kOwner) + std::to_string(::getpid()) + " on " + host_name() + "\n";
  // For a message only: an old name there, or none, does no harm.
  if (::ftruncate(fd, 0) == 0) [[maybe_unused]]
    const ssize_t put = ::pwrite(fd, owner.data(), owner.size(), 0);
}

// An earlier owner's, or none's: anything else is a file of the user's.
void refuse_foreign(int fd, const fs::path& file) {
  if (const std::string before = owner_in(fd); !before.empty() && !before.starts_with(kOwner))
    throw UsageError(file.string() +
                     " is no lock of lockstep train; accepted: another folder, or move that file away");
}

// Earlier versions' files are: another user may hold a lock on one, which outlives a change of its mode.
bool is_open_to_others(int fd) {
  struct stat opened {};
  return ::fstat(fd, &opened) == 0 && (opened.st_mode & 077) != 0;
}

LockHolder holder(const Attempt& made, const fs::path& file) {
  if (made.found == Found::another_users) {
    const std::string who = "uid " + std::to_string(made.another) + ", whose file " + file.string() + " is";
    return {.who = who, .other_user = true};
  }
  const std::string owner = owner_in(made.fd.get());
  return {.who = owner.empty() ? "another process" : owner};
}

}  // namespace

LockFile::LockFile(fs::path file) : file_(std::move(file)) {}

LockFile::~LockFile() {
  if (fd_ && is_named(fd_.get(), file_)) ::unlink(file_.c_str());
}

std::optional<LockHolder> LockFile::try_take() {
  Attempt made = attempt(file_);
  const auto is_replaceable = [&] {
    return (made.taken() || made.found == Found::read) && is_open_to_others(made.fd.get());
  };
  UniqueFd guard;
  const fs::path guard_file = file_.string() + ".new";
  if (is_replaceable()) {
    // One at a time: the second to replace it would take the name from the first one's new file. Nobody
    // waits here, since who is at it is about to have the lock.
    made = {};
    Attempt alone = attempt(guard_file);
    if (!alone.taken()) return holder(alone, guard_file);
    guard = std::move(alone.fd);
    write_owner(guard.get());
    try {
      made = attempt(file_);
      if (is_replaceable()) {  // a lock that only reads is none of ours
        refuse_foreign(made.fd.get(), file_);
        if (::unlink(file_.c_str()) != 0 && errno != ENOENT)
          throw SystemError("cannot remove " + file_.string(), errno);
        made = attempt(file_);
      }
    } catch (...) {
      ::unlink(guard_file.c_str());
      throw;
    }
    ::unlink(guard_file.c_str());
  }
  if (!made.taken()) return holder(made, file_);
  refuse_foreign(made.fd.get(), file_);
  alone_ = made.found == Found::free;
  fd_ = std::move(made.fd);
  write_owner(fd_.get());
  return std::nullopt;
}

}  // namespace lockstep
