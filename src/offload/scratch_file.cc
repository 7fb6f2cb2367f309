#include "offload/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lockstep/base/bytes.h"
#include "offload/aligned_memory.h"

namespace lockstep {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{1} << 20;

std::uint64_t down(std::uint64_t at) { return at / ScratchFile::kAlign * ScratchFile::kAlign; }
std::uint64_t up(std::uint64_t at) { return down(at + ScratchFile::kAlign - 1); }

std::string free_text(const std::filesystem::path& folder) {
  struct statvfs there = {};
  if (::statvfs(folder.c_str(), &there) != 0) return "";
  return fmt::format(" ({} are free)", format_bytes(std::uint64_t{there.f_bavail} * there.f_frsize));
}

}  // namespace

void expect_folder(const std::string& option, const std::filesystem::path& folder) {
  std::error_code error;
  const auto there = std::filesystem::status(folder, error);
  if (std::filesystem::is_directory(there)) return;
  if (std::filesystem::exists(there)) error = std::make_error_code(std::errc::not_a_directory);
  throw UsageError(
      fmt::format("{}: {}; accepted: a folder on a local disk, or none", option, error.message()));
}

const char* path_text(OffloadPath path) {
  switch (path) {
    case OffloadPath::direct: return ", direct";
    case OffloadPath::page_cache: return ", through the page cache";
    case OffloadPath::memory: return "; it is memory, not a disk";
  }
  return "";
}

std::string transfer_text(const char* verb, const std::filesystem::path& folder) {
  return fmt::format("cannot {} the scratch file in {}", verb, folder.string());
}

ScratchFile::ScratchFile(std::filesystem::path folder, std::uint64_t bytes)
    : folder_(std::move(folder)), bytes_(up(bytes)) {
  open_nameless();
  make_room();
  find_path();
}

void ScratchFile::open_nameless() {
  const auto refuse = [&](int error) {
    throw OffloadError(fmt::format("cannot make a scratch file in {}", folder_.string()), error);
  };
  fd_.reset(::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd_) return;
  // What file systems without nameless files say (NFS, old kernels); of the rest the reason is the reason.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) refuse(errno);
  std::string name = (folder_ / "lockstep-offload-XXXXXX").string();
  fd_.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd_) refuse(errno);
  ::unlink(name.c_str());
}

void ScratchFile::make_room() const {
  if (bytes_ == 0) return;
  const auto length = static_cast<off_t>(bytes_);
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), 0, 0, length);
  } while (result != 0 && errno == EINTR);
  // Without it the first writes find out whether there is room, and they come before any step.
  if (result != 0 && errno == EOPNOTSUPP) result = ::ftruncate(fd_.get(), length);
  if (result == 0) return;
  const int error = errno;
  throw OffloadError(fmt::format("cannot make a scratch file of {} in {}{}", format_bytes(bytes_),
                                 folder_.string(), error == ENOSPC ? free_text(folder_) : ""),
                     error);
}

// Some file systems refuse O_DIRECT when it is set, others with the first transfer; tmpfs may take it.
void ScratchFile::find_path() {
  struct statfs there = {};
  if (::fstatfs(fd_.get(), &there) == 0 && (there.f_type == TMPFS_MAGIC || there.f_type == RAMFS_MAGIC)) {
    path_ = OffloadPath::memory;
    return;
  }
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (bytes_ == 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) != 0) return;
  const AlignedMemory page(kAlign);
  if (::pread(fd_.get(), page.data(), kAlign, 0) == kAlign &&
      ::pwrite(fd_.get(), page.data(), kAlign, 0) == kAlign)
    path_ = OffloadPath::direct;
  else
    ::fcntl(fd_.get(), F_SETFL, flags);
}

void ScratchFile::sync() const {
  int result = 0;
  do {
    result = ::fdatasync(fd_.get());
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw OffloadError(transfer_text("write", folder_), errno);
}

void read_fully(const ScratchFile& file, std::uint64_t at, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw OffloadError(transfer_text("read", file.folder()), errno);
    if (got == 0)
      throw OffloadError(fmt::format("{}: it ends at byte {}, {} before what it held",
                                     transfer_text("read", file.folder()), at, format_bytes(bytes.size())));
    at += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

void write_fully(const ScratchFile& file, std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw OffloadError(transfer_text("write", file.folder()), errno);
    if (put == 0)
      throw OffloadError(
          fmt::format("{}: it takes nothing at byte {}", transfer_text("write", file.folder()), at));
    at += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void ScratchFile::read(std::uint64_t at, std::span<std::byte> into) const {
  if (into.empty()) return;
  const AlignedMemory bounce(std::min<std::uint64_t>(kBounceBytes, up(at + into.size()) - down(at)));
  while (!into.empty()) {
    const std::uint64_t begin = down(at);
    const std::size_t length = std::min<std::uint64_t>(bounce.size(), up(at + into.size()) - begin);
    read_fully(*this, begin, bounce.first(length));
    const std::size_t skip = at - begin, some = std::min(into.size(), length - skip);
    std::memcpy(into.data(), bounce.data() + skip, some);
    at += some;
    into = into.subspan(some);
  }
}

void ScratchFile::write(std::uint64_t at, std::span<const std::byte> from) {
  if (from.empty()) return;
  const AlignedMemory bounce(std::min<std::uint64_t>(kBounceBytes, up(at + from.size()) - down(at)));
  while (!from.empty()) {
    const std::uint64_t begin = down(at);
    const std::size_t length = std::min<std::uint64_t>(bounce.size(), up(at + from.size()) - begin);
    const std::size_t skip = at - begin, some = std::min(from.size(), length - skip);
    if (some < length) read_fully(*this, begin, bounce.first(length));
    std::memcpy(bounce.data() + skip, from.data(), some);
    write_fully(*this, begin, bounce.first(length));
    at += some;
    from = from.subspan(some);
  }
}

}  // namespace lockstep
