#include "base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void expect(bool done, const std::filesystem::path& file) {
  if (!done) throw SystemError("cannot write " + file.string(), errno);
}

bool link_as(int fd, const std::filesystem::path& name) {
  const std::string own = fmt::format("/proc/self/fd/{}", fd);
  return ::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// False, with the reason in errno, also when `to` is there.
bool rename_if_free(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  // NFS can't, and has links; FAT has none, and can.
  return errno == EINVAL && ::link(from.c_str(), to.c_str()) == 0 && ::unlink(from.c_str()) == 0;
}

}  // namespace

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& file) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    expect(put >= 0, file);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

OutputFile::OutputFile(std::filesystem::path file) : file_(std::move(file)) {
  fd_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_) throw SystemError("cannot create " + file_.string(), errno);
}

OutputFile::~OutputFile() {
  if (fd_) ::unlink(file_.c_str());
}

void OutputFile::finish() {
  expect(::fsync(fd_.get()) == 0, file_);
  // Some file systems tell of a full disk only here; the descriptor is gone in any case.
  if (::close(fd_.release()) != 0) {
    const int error = errno;
    ::unlink(file_.c_str());
    throw SystemError("cannot write " + file_.string(), error);
  }
}

void publish_file(const std::filesystem::path& file, const std::function<void(const PieceWriter&)>& fill,
                  Sync sync, Existing existing) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::filesystem::path hidden = folder / fmt::format(".{}.{}", file.filename().string(), ::getpid());
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  const bool nameless = static_cast<bool>(fd);
  try {
    if (!nameless) {
      ::unlink(hidden.c_str());  // of a process that was killed
      fd.reset(::open(hidden.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      expect(static_cast<bool>(fd), file);
    }
    fill([&](std::span<const std::byte> bytes) { write_all(fd.get(), bytes, file); });
    expect(sync == Sync::no || ::fsync(fd.get()) == 0, file);
    if (nameless) {
      if (link_as(fd.get(), file)) return;
      expect(existing == Existing::replace, file);
      ::unlink(hidden.c_str());  // an old one stands there: take a name after all, and replace it
      expect(link_as(fd.get(), hidden), file);
    }
    expect(existing == Existing::replace ? ::rename(hidden.c_str(), file.c_str()) == 0
                                         : rename_if_free(hidden, file),
           file);
  } catch (...) {
    ::unlink(hidden.c_str());
    throw;
  }
}

void replace_file(const std::filesystem::path& file, std::string_view text, Sync sync) {
  publish_file(
      file, [text](const PieceWriter& write) { write(std::as_bytes(std::span(text))); }, sync,
      Existing::replace);
}

}  // namespace lockstep
