// Kernels that give less than is asked for.
#include "offload/transfers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <vector>

#include "checkpoint/temp_folder.h"
#include "lockstep/base/clock.h"
#include "offload/aligned_memory.h"
#include "offload/mover.h"
#include "offload/pager.h"

namespace {
std::atomic<int> threads_left = INT_MAX;
std::atomic<bool> rings_wait = true;
std::atomic<int> submissions_taken = INT_MAX;  // then one is refused
std::atomic<int> shortages = 0;                // of memory, to come
std::atomic<bool> writes_nothing = false;
std::atomic<bool> loses_writes = false;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
}  // namespace

// In place of the C library's, for this whole program: threads that can't be had, rings that can't be waited
// for or take nothing more, files that take nothing, and disks that say so later.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*),
                              void* argument) noexcept {
  if (threads_left-- <= 0) return EAGAIN;
  return real<decltype(pthread_create)>("pthread_create")(thread, how, body, argument);
}
extern "C" long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  long given[6];
  for (long& one : given) one = va_arg(rest, long);
  va_end(rest);
  if (number == __NR_io_uring_enter && given[2] > 0 && !rings_wait) {
    errno = EBADFD;
    return -1;
  }
  if (number == __NR_io_uring_enter && given[1] > 0 && submissions_taken-- == 0) {
    errno = EINVAL;
    return -1;
  }
  if (number == __NR_io_uring_enter && shortages > 0) {
    --shortages;
    errno = EAGAIN;
    return -1;
  }
  static auto* const call = real<long(long, ...)>("syscall");
  return call(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
extern "C" ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  return writes_nothing ? 0 : ::syscall(SYS_pwrite64, fd, bytes, count, at);
}

extern "C" int fdatasync(int fd) {
  if (!loses_writes) return static_cast<int>(::syscall(SYS_fdatasync, fd));
  errno = EIO;
  return -1;
}

namespace lockstep {
namespace {

using test::message_of;
using test::TempFolder;

constexpr std::size_t kBytes = 16 * ScratchFile::kAlign;

// Four writes and four reads, and what is read.
void expect_to_work(Transfers& transfers) {
  AlignedMemory out(kBytes), in(kBytes);
  std::memset(out.data(), 7, kBytes);
  const auto move = [&](Transfer::Way way, const AlignedMemory& memory) {
    for (std::size_t i = 0; i < 4; ++i)
      transfers.begin({.way = way,
                       .at = i * kBytes / 4,
                       .bytes = memory.first(kBytes).subspan(i * kBytes / 4, kBytes / 4),
                       .tag = i});
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(transfers.take(Wait::yes));
  };
  move(Transfer::Way::write, out);
  move(Transfer::Way::read, in);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kBytes), 0);
}

TEST(Transfers, GoOnWithTheThreadsThatCanBeHad) {
  const TempFolder folder;
  const ScratchFile file(folder.path(), kBytes);
  for (const int threads : {1, 3}) {
    threads_left = threads;
    const auto transfers = make_thread_transfers(file, 6);
    threads_left = INT_MAX;
    expect_to_work(*transfers);
  }
  threads_left = 0;
  const std::string message = message_of<OffloadError>([&] { make_thread_transfers(file, 6); });
  threads_left = INT_MAX;
  EXPECT_EQ(
      message,
      "cannot start a thread for the scratch file in " + folder.path().string() +
          ": not enough memory for its stack, or too many processes (ulimit -u, or a container's limit)");
}

class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!make_uring_transfers(file_, 1))
      GTEST_SKIP() << "no io_uring for this process: " << std::strerror(errno);
  }
  void TearDown() override {
    rings_wait = true;
    submissions_taken = INT_MAX;
    shortages = 0;
  }
  TempFolder folder_;
  ScratchFile file_{folder_.path(), kBytes};
};

// A ring in which nothing is read, or nothing written, is none.
TEST_F(RingTest, IsNotUsedWhereItDoesNotReadAndWrite) {
  for (const int one_way : {O_WRONLY, O_RDONLY}) {
    const ScratchFile file(folder_.path(), kBytes);
    const UniqueFd closed(::open("/dev/zero", one_way | O_CLOEXEC));
    ASSERT_GE(::dup2(closed.get(), file.fd()), 0);
    EXPECT_STREQ(make_transfers(file, 4, OffloadIo::automatic)->name(), "threads");
    EXPECT_EQ(message_of<OffloadError>([&] { make_transfers(file, 4, OffloadIo::io_uring); }),
              "cannot set up io_uring: Bad file descriptor");
  }
  EXPECT_STREQ(make_transfers(file_, 4, OffloadIo::automatic)->name(), "io_uring");
}

TEST_F(RingTest, LeavesTheFileAsItIs) {
  const std::vector<std::byte> bytes(kBytes, std::byte{9});
  file_.write(0, bytes);
  ASSERT_TRUE(make_uring_transfers(file_, 4));
  std::vector<std::byte> back(kBytes);
  file_.read(0, back);
  EXPECT_EQ(back, bytes);
}

// One that breaks later says so with every call; what is under way is waited for all the same, as long as its
// end can be seen.
TEST_F(RingTest, ThatCannotBeWaitedForSaysSo) {
  auto transfers = make_uring_transfers(file_, 4);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  ASSERT_GE(::dup2(from.get(), file_.fd()), 0);
  const AlignedMemory page(ScratchFile::kAlign);
  const Transfer read{.way = Transfer::Way::read, .at = 0, .bytes = page.first(page.size()), .tag = 1};
  transfers->begin(read);
  rings_wait = false;
  const std::string reason =
      " the scratch file in " + folder_.path().string() + ": File descriptor in bad state";
  for (int round = 0; round < 2; ++round)
    EXPECT_EQ(message_of<OffloadError>([&] { transfers->take(Wait::yes); }), "cannot wait for" + reason);
  EXPECT_EQ(message_of<OffloadError>([&] { transfers->begin(read); }), "cannot read" + reason);
  const std::vector<std::byte> bytes(page.size(), std::byte{5});
  ASSERT_EQ(::write(to.get(), bytes.data(), bytes.size()), std::ssize(bytes));
  transfers.reset();
  EXPECT_EQ(std::memcmp(page.data(), bytes.data(), bytes.size()), 0);
}

TEST_F(RingTest, IsAskedAgainWhereTheKernelIsShortOfMemory) {
  const auto transfers = make_uring_transfers(file_, 4);
  shortages = 3;
  const auto since = Clock::now();
  expect_to_work(*transfers);
  EXPECT_EQ(shortages, 0);
  EXPECT_GE(Clock::now() - since, std::chrono::milliseconds(3));  // not all at once
}

// Of five pieces the third is refused: the first two are through when that is said, the others never begin.
TEST_F(RingTest, ThatRefusesAPieceReadsNothingMoreBehindTheError) {
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  ScratchFile file(folder_.path(), 5 * kPiece);
  const std::vector<std::byte> written(5 * kPiece, std::byte{3});
  file.write(0, written);
  Mover mover(file, OffloadIo::io_uring);
  AlignedMemory memory(5 * kPiece);
  submissions_taken = 2;
  const std::string message =
      message_of<OffloadError>([&] { mover.begin(Transfer::Way::read, 0, memory.first(memory.size())); });
  EXPECT_NE(message.find("cannot read the scratch file"), std::string::npos) << message;
  EXPECT_EQ(memory.data()[0], std::byte{3});
  EXPECT_EQ(memory.data()[2 * kPiece - 1], std::byte{3});
  std::memset(memory.data(), 7, memory.size());  // another's by now
  const AlignedMemory other(kPiece);
  EXPECT_EQ(message_of<OffloadError>([&] { mover.begin(Transfer::Way::read, 0, other.first(kPiece)); }),
            "a transfer of the scratch file has failed before");
  EXPECT_EQ(std::count(memory.data(), memory.data() + memory.size(), std::byte{7}),
            static_cast<std::ptrdiff_t>(memory.size()));
}

TEST(Transfers, EndWhereAFileTakesNothing) {
  const TempFolder folder;
  ScratchFile file(folder.path(), kBytes);
  const std::vector<std::byte> bytes(kBytes);
  writes_nothing = true;
  const std::string message = message_of<OffloadError>([&] { file.write(0, bytes); });
  writes_nothing = false;
  EXPECT_EQ(message,
            "cannot write the scratch file in " + folder.path().string() + ": it takes nothing at byte 0");
}

class InMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    struct statfs there = {};
    if (::statfs("/dev/shm", &there) != 0 || there.f_type != TMPFS_MAGIC)
      GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
};

TEST_F(InMemory, SaysThatItIsNoDisk) {
  const ScratchFile file("/dev/shm", kBytes);
  EXPECT_EQ(file.path(), OffloadPath::memory);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(rates_of({.folder = "/dev/shm", .staging_bytes = 6 * kBytes}).path, OffloadPath::memory);
  EXPECT_STREQ(path_text(file.path()), "; it is memory, not a disk");
}

// What goes past no page cache is refused when it is written; through one, later.
TEST_F(InMemory, HearsOfWritesThatWereLost) {
  Pager pager({.folder = "/dev/shm"}, {{.at = 0, .bytes = kBytes}});
  const auto pass = [&](PageUse use) {
    const Pager::Visit all{.page = 0, .use = use};
    pager.pass(std::span(&all, 1), [](std::size_t, std::span<std::byte>) {});
  };
  pass(PageUse::write);
  loses_writes = true;
  EXPECT_NO_THROW(pass(PageUse::read));
  for (const PageUse use : {PageUse::write, PageUse::update})
    EXPECT_EQ(message_of<OffloadError>([&] { pass(use); }),
              "cannot write the scratch file in /dev/shm: Input/output error");
  loses_writes = false;
}

}  // namespace
}  // namespace lockstep
