#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Linux moves at most 2 GiB a call.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

void sync(const std::filesystem::path& path, int flags) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!fd) throw SystemError("cannot open " + path.string(), errno);
  if (::fsync(fd.get()) != 0) throw SystemError("cannot sync " + path.string(), errno);
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
    const ssize_t got = ::read(fd_.get(), into.data(), std::min(into.size(), kMostAtOnce));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw SystemError("cannot read " + file_.string(), errno);
  }
}

void InputFile::read_all(std::span<std::byte> into) {
  while (!into.empty()) {
    const std::size_t got = read_some(into);
    if (got == 0)
      throw SystemError("cannot read " + file_.string() + ": it became shorter while it was read");
    into = into.subspan(got);
  }
}

OutputFile::OutputFile(std::filesystem::path file) : file_(std::move(file)) {
  fd_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_) throw SystemError("cannot create " + file_.string(), errno);
}

OutputFile::~OutputFile() {
  if (fd_) ::unlink(file_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw SystemError("cannot write " + file_.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void OutputFile::finish() {
  if (::fsync(fd_.get()) != 0) throw SystemError("cannot write " + file_.string(), errno);
  // Some file systems tell of a full disk only here; the descriptor is gone in any case.
  if (::close(fd_.release()) != 0) {
    const int error = errno;
    ::unlink(file_.c_str());
    throw SystemError("cannot write " + file_.string(), error);
  }
}

void sync_file(const std::filesystem::path& file) { sync(file, 0); }
void sync_folder(const std::filesystem::path& folder) { sync(folder, O_DIRECTORY); }

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

}  // namespace lockstep
