// The drawings: the same everywhere, whole or not there at all.
#include "lockstep/data/shapes.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <sstream>
#include <thread>

#include "base/lock_file.h"
#include "base/stranger_lock.h"
#include "base/synced.h"
#include "comm/expect_error.h"
#include "data/temp_folder.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::Bytes;
using testing::expect_error;
using testing::read_bytes;
using testing::TempFolder;
using testing::write_bytes;

constexpr ShapesOptions kFew = {.train = 23, .test = 11, .seed = 5};

Bytes drawing(std::uint64_t seed, Split split, std::int64_t index) {
  Bytes pixels(3072);
  EXPECT_EQ(draw_shape(seed, split, index, pixels), index % 10);
  return pixels;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(Shapes, DrawingDependsOnSeedSplitAndIndexOnly) {
  const Bytes one = drawing(1, Split::train, 7);
  drawing(9, Split::test, 3);
  EXPECT_EQ(one, drawing(1, Split::train, 7));
  EXPECT_NE(one, drawing(2, Split::train, 7));
  EXPECT_NE(one, drawing(1, Split::test, 7));
  EXPECT_NE(one, drawing(1, Split::train, 17));
}

TEST(Shapes, DrawsTheSameOnEveryMachine) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (std::int64_t i = 0; i < 100; ++i)
    for (const std::uint8_t byte : drawing(42, Split::train, i)) hash = (hash ^ byte) * 0x100000001b3u;
  EXPECT_EQ(hash, 7171148400390550565u) << "the drawings changed: then kDrawing in shapes.cc must, too";
}

// The mean colour of a class says nothing: over many drawings the classes agree, and so do the colour
// channels.
TEST(Shapes, ColourTellsNothing) {
  std::array<double, 10> mean = {};
  constexpr int kImages = 3000;
  for (int i = 0; i < kImages; ++i)
    for (const std::uint8_t byte : drawing(3, Split::train, i))
      mean[static_cast<std::size_t>(i % 10)] += byte / (3072.0 * kImages / 10);
  // The mean of an image deviates by about 40, that of 300 by 2.3.
  const auto [low, high] = std::minmax_element(mean.begin(), mean.end());
  EXPECT_GT(*low, 127.5 - 10);
  EXPECT_LT(*high, 127.5 + 10);
}

TEST(Shapes, WritesWhatTheCifarReaderReads) {
  const TempFolder temp;
  const auto folder = make_shapes(temp.path() / "s", kFew);
  const Images train = read_cifar10(folder, Split::train);
  const Images test = read_cifar10(folder, Split::test);
  ASSERT_EQ(train.size(), 23);
  ASSERT_EQ(test.size(), 11);
  for (std::int64_t i = 0; i < 23; ++i) {
    EXPECT_EQ(train.labels[static_cast<std::size_t>(i)], i % 10);
    const Bytes expected = drawing(5, Split::train, i);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), train.pixels.begin() + i * 3072)) << i;
  }
  const Bytes last = drawing(5, Split::test, 10);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), test.pixels.end() - 3072));
  EXPECT_EQ(entries(temp.path()), 1u) << "nothing but the folder itself";
}

TEST(Shapes, TakesWhatIsThereAndRefusesWhatDiffers) {
  const TempFolder temp;
  const auto folder = make_shapes(temp.path() / "s" / "", kFew);
  const auto before = fs::last_write_time(temp.path() / "s" / "data_batch_1.bin");
  make_shapes(temp.path() / "s", kFew);
  EXPECT_EQ(fs::last_write_time(temp.path() / "s" / "data_batch_1.bin"), before);
  for (const ShapesOptions& other :
       {ShapesOptions{24, 11, 5}, ShapesOptions{23, 12, 5}, ShapesOptions{23, 11, 6}})
    expect_error<UsageError>([&] { make_shapes(temp.path() / "s", other); },
                             {"other settings", "\"train\": 23", "\"seed\": " + std::to_string(other.seed)});
  fs::resize_file(temp.path() / "s" / "data_batch_3.bin", 5);
  expect_error<UsageError>([&] { make_shapes(temp.path() / "s", kFew); }, {"data_batch_3.bin", "5 bytes"});
  fs::remove(temp.path() / "s" / "data_batch_3.bin");
  expect_error<UsageError>([&] { make_shapes(temp.path() / "s", kFew); }, {"data_batch_3.bin", "missing"});
}

TEST(Shapes, LeavesSomebodyElsesFolderAlone) {
  const TempFolder temp;
  write_bytes(temp.path() / "mine" / "thesis.txt", testing::bytes_of("years of work"));
  expect_error<UsageError>([&] { make_shapes(temp.path() / "mine", kFew); }, {"mine'", "holds no drawings"});
  EXPECT_EQ(read_bytes(temp.path() / "mine" / "thesis.txt"), testing::bytes_of("years of work"));
  fs::create_directory(temp.path() / "empty");
  EXPECT_EQ(read_cifar10(make_shapes(temp.path() / "empty", kFew), Split::test).size(), 11);
}

TEST(Shapes, RefusesNumbersThatDoNotFitTheFiles) {
  const TempFolder temp;
  for (const ShapesOptions& bad :
       {ShapesOptions{4, 10, 0}, ShapesOptions{500'001, 10, 0}, ShapesOptions{10, 0, 0},
        ShapesOptions{10, 100'001, 0}, ShapesOptions{-1, 10, 0}})
    expect_error<UsageError>([&] { make_shapes(temp.path() / "s", bad); }, {"5 to 500000", "1 to 100000"});
  EXPECT_EQ(entries(temp.path()), 0u);
}

// A limit on the size of files stands for a full disk: write() fails half way.
TEST(Shapes, AFullDiskIsOneLineAndLeavesNothing) {
  const TempFolder temp;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 20'000,
                     .rlim_max = before.rlim_max};  // the first file fits, the test file doesn't
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error<SystemError>([&] { make_shapes(temp.path() / "s", kFew); },
                            {"cannot write", "test_batch.bin"});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(entries(temp.path()), 0u);
  make_shapes(temp.path() / "s", kFew);
  EXPECT_EQ(entries(temp.path()), 1u);
}

TEST(Shapes, AKillLeavesNothingHalfMade) {
  const TempFolder temp;
  const ShapesOptions many{.train = 400'000, .test = 10, .seed = 0};
  const pid_t child = ::fork();
  if (child == 0) {
    make_shapes(temp.path() / "s", many);
    ::_exit(0);
  }
  for (int i = 0; i < 5000 && entries(temp.path()) < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it was made before the kill";
  EXPECT_FALSE(fs::exists(temp.path() / "s"));
  EXPECT_EQ(entries(temp.path()), 2u) << "the staging folder and its lock";
  make_shapes(temp.path() / "s", kFew);
  EXPECT_EQ(entries(temp.path()), 1u) << "the staging folder or its lock was not removed";
  EXPECT_EQ(read_cifar10(temp.path() / "s", Split::train).size(), 23);
}

// As by Ctrl-Z in the terminal of another run, while it draws.
TEST(Shapes, AMakerThatWasStoppedIsNamedAndNotWaitedForForEver) {
  const TempFolder temp;
  LockFile stopped(temp.path() / ".s.lock");
  ASSERT_FALSE(stopped.try_take());
  const std::string who = "process " + std::to_string(::getpid()) + " on ";
  std::ostringstream said;
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(said);
  log().sinks().push_back(sink);
  expect_error<SystemError>(
      [&] { make_shapes(temp.path() / "s", kFew, {.say_after = 1ms, .give_up_after = 200ms}); },
      {"s'", "is being made by " + who, "longer than 0.37 s; accepted"});
  log().sinks().pop_back();
  const std::string line = "waiting for " + who;
  EXPECT_NE(said.str().find(line), std::string::npos) << said.str();
  EXPECT_EQ(said.str().find(line), said.str().rfind(line)) << "once";
  EXPECT_EQ(entries(temp.path()), 1u);
}

TEST(Shapes, WhoWaitsTakesWhatTheOtherMade) {
  const TempFolder temp;
  auto first = std::make_unique<LockFile>(temp.path() / ".s.lock");
  ASSERT_FALSE(first->try_take());
  std::jthread second([&] { make_shapes(temp.path() / "s", kFew); });
  first.reset();
  second.join();
  EXPECT_EQ(read_cifar10(temp.path() / "s", Split::train).size(), 23);
  EXPECT_EQ(entries(temp.path()), 1u);
}

TEST(Shapes, AStrangersLockOnTheParentHoldsNobodyUp) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may make a process of another user";
  const TempFolder temp;
  ASSERT_EQ(::chmod(temp.path().c_str(), 0755), 0);
  const test::StrangersLock stranger(temp.path(), test::StrangersWay::flock);
  make_shapes(temp.path() / "s", kFew, {.give_up_after = 0ms});
  EXPECT_EQ(entries(temp.path()), 1u);
}

TEST(Shapes, EveryNewFolderOnTheWayIsSynced) {
  const TempFolder temp;
  test::synced().clear();
  make_shapes(temp.path() / "new" / "data" / "s", kFew);
  for (const fs::path& folder : {temp.path(), temp.path() / "new", temp.path() / "new" / "data"})
    EXPECT_TRUE(test::synced().contains(folder.string())) << folder;
}

TEST(Shapes, SeveralMakersAtOnce) {
  const TempFolder temp;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        make_shapes(temp.path() / "s", kFew);
        ::_exit(read_cifar10(temp.path() / "s", Split::train).size() == 23 ? 0 : 1);
      } catch (...) {
        ::_exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(entries(temp.path()), 1u);
}

}  // namespace
}  // namespace lockstep
