// Owned descriptors and mappings: nothing leaks, nothing is closed twice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mapping.h"

namespace lockstep {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

UniqueFd memory_file(std::size_t bytes) {
  UniqueFd fd(::memfd_create("fd_mapping_test", MFD_CLOEXEC));
  EXPECT_TRUE(fd) << "memfd_create: errno " << errno;
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

bool is_mapped(const void* page) {
  unsigned char resident = 0;
  return ::mincore(const_cast<void*>(page), 1, &resident) == 0;
}

TEST(UniqueFd, EmptyOwnsNothing) {
  const UniqueFd fd;
  EXPECT_FALSE(fd);
  EXPECT_EQ(fd.get(), -1);
}

TEST(UniqueFd, ClosesWhenItGoes) {
  int number = -1;
  {
    const UniqueFd fd = memory_file(0);
    number = fd.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, MovesItsDescriptor) {
  static_assert(!std::is_copy_constructible_v<UniqueFd> && !std::is_copy_assignable_v<UniqueFd>);
  UniqueFd first = memory_file(0);
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a moved-from one holds is the test
  EXPECT_EQ(second.get(), number);

  UniqueFd third = memory_file(0);
  const int dropped = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(dropped));
  EXPECT_TRUE(is_open(number));
}

TEST(UniqueFd, SurvivesAssignmentToItself) {
  UniqueFd fd = memory_file(0);
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_TRUE(fd);
  EXPECT_TRUE(is_open(fd.get()));
}

TEST(UniqueFd, ReleaseGivesUpAndResetCloses) {
  UniqueFd fd = memory_file(0);
  const int number = fd.release();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(is_open(number));
  fd.reset(number);
  EXPECT_EQ(fd.get(), number);
  fd.reset();
  EXPECT_FALSE(fd);
  EXPECT_FALSE(is_open(number));
}

TEST(Mapping, EmptyOwnsNothing) {
  const Mapping mapping;
  EXPECT_EQ(mapping.data(), nullptr);
  EXPECT_EQ(mapping.bytes(), 0U);
}

TEST(Mapping, SharesMemoryAndOutlivesItsDescriptor) {
  UniqueFd fd = memory_file(8192);
  const Mapping first(fd.get(), 8192);
  const Mapping second(fd.get(), 8192);
  fd.reset();
  ASSERT_NE(first.data(), second.data());
  first.data()[8191] = std::byte{42};
  EXPECT_EQ(second.data()[8191], std::byte{42});
  EXPECT_EQ(second.data()[0], std::byte{0});
  EXPECT_EQ(first.bytes(), 8192U);
}

TEST(Mapping, StartsWhereAHugePageMay) {
  const UniqueFd fd = memory_file(4 << 20);
  const Mapping mapping(fd.get(), 4 << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping.data()) % (2 << 20), 0U);
}

TEST(Mapping, TakesAnySizeAndNoMoreThanThat) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4095}, std::size_t{4097}, std::size_t{3} << 20}) {
    const UniqueFd fd = memory_file(bytes);
    const Mapping mapping(fd.get(), bytes);
    mapping.data()[bytes - 1] = std::byte{1};
    EXPECT_FALSE(is_mapped(mapping.data() + (bytes + 4095) / 4096 * 4096)) << bytes;
  }
}

TEST(Mapping, UnmapsWhenItGoes) {
  const UniqueFd fd = memory_file(4096);
  const void* at = nullptr;
  {
    const Mapping mapping(fd.get(), 4096);
    at = mapping.data();
    EXPECT_TRUE(is_mapped(at));
  }
  EXPECT_FALSE(is_mapped(at));
}

TEST(Mapping, MovesItsMemory) {
  const UniqueFd fd = memory_file(4096);
  Mapping first(fd.get(), 4096);
  std::byte* const at = first.data();
  Mapping second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): as above
  EXPECT_EQ(second.data(), at);

  const void* dropped = nullptr;
  {
    Mapping third(fd.get(), 4096);
    dropped = third.data();
    second = std::move(third);
    EXPECT_NE(second.data(), at);
  }
  EXPECT_TRUE(is_mapped(dropped));  // second has it now
  EXPECT_FALSE(is_mapped(at));
}

TEST(Mapping, SaysWhatCouldNotBeMapped) {
  try {
    const Mapping mapping(-1, 4096);
    FAIL() << "mapped descriptor -1";
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "cannot map 4 KiB of shared memory: Bad file descriptor");
  }
  const UniqueFd fd = memory_file(4096);
  EXPECT_THROW(Mapping(fd.get(), 0), SystemError);
  EXPECT_THROW(Mapping(fd.get(), std::size_t{1} << 60), SystemError);
}

TEST(Mapping, ReservesAddressesNotMemory) {
  const std::size_t bytes = std::size_t{64} << 30;  // more than most machines have
  const UniqueFd fd = memory_file(bytes);
  const Mapping mapping(fd.get(), bytes);
  mapping.data()[bytes - 1] = std::byte{1};
  EXPECT_EQ(mapping.data()[bytes - 1], std::byte{1});
}

}  // namespace
}  // namespace lockstep
