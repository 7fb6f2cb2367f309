#include "offload/scratch_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "checkpoint/temp_folder.h"
#include "lockstep/offload/offload.h"

namespace {
bool has_nameless_files = true;
}

// In place of the C library's, for this whole program: a file system without O_TMPFILE.
extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (!has_nameless_files && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace lockstep {
namespace {

using test::message_of;
using test::TempFolder;

std::vector<std::byte> counted_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

TEST(ScratchFile, HasNoNameAndRoomForAll) {
  for (const bool nameless : {true, false}) {
    has_nameless_files = nameless;
    const TempFolder folder;
    const ScratchFile file(folder.path(), 1 << 20);
    has_nameless_files = true;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    struct stat about = {};
    ASSERT_EQ(::fstat(file.fd(), &about), 0);
    EXPECT_EQ(about.st_nlink, 0u);
    EXPECT_EQ(about.st_size, 1 << 20);
    EXPECT_GE(about.st_blocks * 512, 1 << 20);
  }
}

TEST(ScratchFile, BeginsWithZeros) {
  const TempFolder folder;
  const ScratchFile file(folder.path(), 10'000);
  std::vector<std::byte> bytes(10'000, std::byte{1});
  file.read(0, bytes);
  EXPECT_EQ(bytes, std::vector<std::byte>(10'000));
}

// Anywhere, of any length, also longer than the buffer in between; what lies around it stays.
TEST(ScratchFile, KeepsBytesAtAnyPlace) {
  const TempFolder folder;
  ScratchFile file(folder.path(), 4 << 20);
  std::vector<std::byte> whole = counted_bytes(4 << 20);
  file.write(0, whole);
  for (const auto& [at, count] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1},
                                                                                  {4095, 2},
                                                                                  {5000, 3000},
                                                                                  {4096, 4096},
                                                                                  {100'001, 2'500'003},
                                                                                  {(4 << 20) - 5, 5},
                                                                                  {77, 0}}) {
    const std::vector<std::byte> piece(count, static_cast<std::byte>(count + 1));
    file.write(at, piece);
    std::copy(piece.begin(), piece.end(), whole.begin() + static_cast<std::ptrdiff_t>(at));
    std::vector<std::byte> back(count);
    file.read(at, back);
    EXPECT_EQ(back, piece) << at;
  }
  std::vector<std::byte> back(whole.size());
  file.read(0, back);
  EXPECT_EQ(back, whole);
}

TEST(ScratchFile, SaysWhichFolderItCannotUse) {
  const TempFolder folder;
  const auto missing = folder.path() / "missing";
  EXPECT_EQ(message_of<OffloadError>([&] { ScratchFile(missing, 1); }),
            "cannot make a scratch file in " + missing.string() + ": No such file or directory");
  EXPECT_EQ(message_of<OffloadError>([&] { ScratchFile("/proc/self", 1); }).substr(0, 40),
            "cannot make a scratch file in /proc/self");
}

TEST(ScratchFile, TellsWhereItEnds) {
  const TempFolder folder;
  const ScratchFile file(folder.path(), 16 << 10);
  ASSERT_EQ(::ftruncate(file.fd(), 8 << 10), 0);
  std::vector<std::byte> bytes(16 << 10);
  EXPECT_EQ(message_of<OffloadError>([&] { file.read(0, bytes); }),
            "cannot read the scratch file in " + folder.path().string() +
                ": it ends at byte 8192, 8 KiB before what it held");
}

}  // namespace
}  // namespace lockstep
