#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void became_shorter(const std::filesystem::path& file) {
  throw SystemError("cannot read " + file.string() + ": it became shorter while it was read");
}

}  // namespace

InputFile::InputFile(std::filesystem::path file) : file_(std::move(file)) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  fd_.reset(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) {
    const int why = errno;
    if (why == EACCES || why == EPERM || why == EMFILE || why == ENFILE || why == ENOMEM)
      throw RefusedFile("cannot open " + file_.string(), why);
    throw SystemError("cannot open " + file_.string(), why);
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw SystemError("cannot look at " + file_.string(), errno);
  if (!S_ISREG(status.st_mode)) throw SystemError("cannot read " + file_.string() + ": it is no plain file");
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

std::size_t InputFile::read_some(std::span<std::byte> into) {
  while (true) {
    const ssize_t got = ::read(fd_.get(), into.data(), into.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw SystemError("cannot read " + file_.string(), errno);
  }
}

void InputFile::read_all(std::span<std::byte> into) {
  while (!into.empty()) {
    const std::size_t got = read_some(into);
    if (got == 0) became_shorter(file_);
    into = into.subspan(got);
  }
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError("cannot read " + file_.string(), errno);
    if (got == 0) became_shorter(file_);
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

void sync_file(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw SystemError("cannot open " + file.string(), errno);
  if (::fsync(fd.get()) != 0) throw SystemError("cannot sync " + file.string(), errno);
}

std::string read_text(const std::filesystem::path& file, std::uint64_t most) {
  InputFile input(file);
  if (input.bytes() > most) {
    throw SystemError("cannot read " + file.string() + ": it has " + format_bytes(input.bytes()) +
                      ", more than the " + format_bytes(most) + " that are accepted");
  }
  std::string text(static_cast<std::size_t>(input.bytes()), '\0');
  input.read_all(std::as_writable_bytes(std::span(text)));
  return text;
}

std::uint64_t folder_number(const std::filesystem::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? status.st_ino : 0;
}

bool was_removed(const std::filesystem::path& folder, std::uint64_t number) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return errno == ENOENT;
  return status.st_ino != number;
}

}  // namespace lockstep
