#include "offload/pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "checkpoint/temp_folder.h"

namespace lockstep {
namespace {

using test::message_of;
using test::TempFolder;

constexpr std::size_t kPage = 64 << 10;

std::vector<FilePage> pages_of(std::size_t count) {
  std::vector<FilePage> pages;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = kPage - i % 3 * ScratchFile::kAlign;  // they need not be alike
    pages.push_back({.at = at, .bytes = bytes});
    at += bytes;
  }
  return pages;
}

void fill_page(std::size_t page, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(page * 31 + i / 97);
}

bool is_filled(std::span<const std::byte> bytes, std::size_t page, std::size_t more) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != static_cast<std::byte>(page * 31 + i / 97 + more)) return false;
  return true;
}

std::vector<Pager::Visit> visit_all(std::size_t count, PageUse use) {
  std::vector<Pager::Visit> visits;
  for (std::size_t i = 0; i < count; ++i) visits.push_back({.page = i, .use = use});
  return visits;
}

class PagerBy : public ::testing::TestWithParam<OffloadIo> {
 protected:
  void SetUp() override {
    const ScratchFile file(folder_.path(), ScratchFile::kAlign);
    if (GetParam() == OffloadIo::io_uring && !make_uring_transfers(file, 1))
      GTEST_SKIP() << "no io_uring for this process: " << std::strerror(errno);
  }
  Offload offload() const { return {.folder = folder_.path(), .io = GetParam()}; }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Io, PagerBy, ::testing::Values(OffloadIo::io_uring, OffloadIo::threads),
                         [](const auto& io) {
                           return io.param == OffloadIo::threads ? "Threads" : "IoUring";
                         });

// Fewer pages than buffers, as many, and many more.
TEST_P(PagerBy, UpdatesEveryPageOnceAndInOrder) {
  for (const std::size_t count : {0u, 1u, 6u, 7u, 40u}) {
    Pager pager(offload(), pages_of(count));
    EXPECT_LE(pager.staging_bytes(), kStagedPages * kPage);
    pager.pass(visit_all(count, PageUse::write), fill_page);
    for (std::size_t round = 0; round < 3; ++round) {
      std::vector<std::size_t> seen;
      pager.pass(visit_all(count, PageUse::update), [&](std::size_t page, std::span<std::byte> bytes) {
        seen.push_back(page);
        EXPECT_EQ(bytes.size(), pager.pages()[page].bytes);
        EXPECT_TRUE(is_filled(bytes, page, round))
            << "page " << page << " of " << count << ", round " << round;
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(static_cast<int>(byte) + 1);
      });
      ASSERT_EQ(seen.size(), count);
      EXPECT_TRUE(std::ranges::is_sorted(seen));
    }
    pager.pass(visit_all(count, PageUse::read),
               [&](std::size_t page, std::span<std::byte> bytes) { EXPECT_TRUE(is_filled(bytes, page, 3)); });
  }
}

// A page that is only read stays as it is, whatever is done to its buffer; one that is written anew begins
// with zeros; those that are not visited are not touched.
TEST_P(PagerBy, WritesWhatIsToBeWritten) {
  Pager pager(offload(), pages_of(20));
  pager.pass(visit_all(20, PageUse::write), fill_page);
  pager.pass(visit_all(20, PageUse::read),
             [](std::size_t, std::span<std::byte> bytes) { std::memset(bytes.data(), 0xff, bytes.size()); });
  const std::vector<Pager::Visit> some = {{3, PageUse::write}, {7, PageUse::update}, {19, PageUse::read}};
  pager.pass(some, [](std::size_t page, std::span<std::byte> bytes) {
    EXPECT_EQ(bytes[100] == std::byte{0}, page == 3);
    if (page == 7) bytes[100] = std::byte{0xaa};
  });
  pager.pass(visit_all(20, PageUse::read), [](std::size_t page, std::span<std::byte> bytes) {
    if (page == 3) {
      EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), std::ssize(bytes));
      return;
    }
    if (page == 7) {
      EXPECT_EQ(bytes[100], std::byte{0xaa});
      bytes[100] = static_cast<std::byte>(page * 31 + 100 / 97);
    }
    EXPECT_TRUE(is_filled(bytes, page, 0)) << page;
  });
}

TEST_P(PagerBy, TellsOfAFileThatEndsTooEarlyAndOfWorkThatFails) {
  Pager pager(offload(), pages_of(30));
  pager.pass(visit_all(30, PageUse::write), fill_page);
  for (int round = 0; round < 2; ++round)  // it may be tried again
    EXPECT_THROW(pager.pass(visit_all(30, PageUse::update),
                            [](std::size_t page, std::span<std::byte>) {
                              if (page == 11) throw std::logic_error("eleven");
                            }),
                 std::logic_error);
  pager.pass(visit_all(30, PageUse::read), [](std::size_t page, std::span<std::byte> bytes) {
    EXPECT_TRUE(is_filled(bytes, page, 0)) << page;
  });
  ASSERT_EQ(::ftruncate(pager.file().fd(), static_cast<off_t>(pager.pages()[20].at)), 0);
  std::size_t last = 0;
  const std::string message = message_of<OffloadError>([&] {
    pager.pass(visit_all(30, PageUse::read), [&](std::size_t page, std::span<std::byte>) { last = page; });
  });
  EXPECT_NE(message.find("the scratch file in " + folder_.path().string() + ": it ends at byte "),
            message.npos)
      << message;
  EXPECT_LT(last, 20u);
}

TEST_P(PagerBy, TellsOfAFullDisk) {
  Pager pager(offload(), pages_of(3));
  const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  ASSERT_GE(::dup2(full.get(), pager.file().fd()), 0);
  EXPECT_EQ(message_of<OffloadError>([&] { pager.pass(visit_all(3, PageUse::write), fill_page); }),
            "cannot write the scratch file in " + folder_.path().string() + ": No space left on device");
}

TEST_P(PagerBy, MeasuresTheDisk) {
  Pager pager(offload(), pages_of(9));
  const DiskRates rates = measure_rates(pager);
  for (const double rate : {rates.read, rates.write, rates.both}) {
    EXPECT_GT(rate, 1e5);
    EXPECT_LT(rate, 1e13);
  }
  EXPECT_GT(pager.waited_ns(), 0);
}

TEST(StepPasses, AreThoseOfTheOptimizer) {
  const DiskRates rates{.read = 4e6, .write = 3e6, .both = 2e6};
  const auto ms = [&](StepNorms norms, StepMasters masters) {
    return milliseconds_of(passes_of_step(norms, masters), 1e6, rates);
  };
  EXPECT_EQ(ms(StepNorms::none, StepMasters::none), 500);
  EXPECT_EQ(ms(StepNorms::none, StepMasters::on_disk), 500);
  EXPECT_EQ(ms(StepNorms::of_parameters, StepMasters::none), 500);  // they are in memory
  EXPECT_EQ(ms(StepNorms::of_parameters, StepMasters::on_disk), 750);
  EXPECT_EQ(ms(StepNorms::of_moments, StepMasters::none), 750);
  EXPECT_EQ(ms(StepNorms::of_moments, StepMasters::on_disk), 1000);
}

}  // namespace
}  // namespace lockstep
