#include "base/lock_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "base/stranger_lock.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::StrangersLock;
using test::StrangersWay;

class LockFileTest : public ::testing::Test {
 protected:
  LockFileTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-lock-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    ::chmod(folder_.c_str(), 0755);  // others may look at it
  }
  ~LockFileTest() override { fs::remove_all(folder_); }

  // As earlier versions left it.
  void leave(const std::string& text, mode_t mode) const {
    std::ofstream(file()) << text;
    ::chmod(file().c_str(), mode);
  }
  fs::path file() const { return folder_ / ".lock"; }
  mode_t mode() const {
    struct stat found {};
    EXPECT_EQ(::stat(file().c_str(), &found), 0);
    return found.st_mode & 0777;
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(LockFileTest, IsOneHoldersAndGoesWithIt) {
  const auto first = std::make_unique<LockFile>(file());
  ASSERT_FALSE(first->try_take());
  EXPECT_EQ(mode(), 0600u);
  LockFile second(file());
  const std::optional<LockHolder> holder = second.try_take();
  ASSERT_TRUE(holder);
  EXPECT_TRUE(holder->who.starts_with("process " + std::to_string(::getpid()) + " on ")) << holder->who;
  EXPECT_FALSE(holder->other_user);
}

TEST_F(LockFileTest, ASecondOneHasItWhenTheFirstIsGone) {
  auto first = std::make_unique<LockFile>(file());
  ASSERT_FALSE(first->try_take());
  LockFile second(file());
  EXPECT_TRUE(second.try_take());
  first.reset();
  EXPECT_FALSE(second.try_take());
  EXPECT_EQ(entries(), 1);
}

TEST_F(LockFileTest, NothingIsLeft) {
  { EXPECT_FALSE(LockFile(file()).try_take()); }
  leave("process 1 on the moon\n", 0644);
  { EXPECT_FALSE(LockFile(file()).try_take()); }
  EXPECT_EQ(entries(), 0);
}

TEST_F(LockFileTest, AnEarlierVersionsFileIsReplacedByOneOfItsUserAlone) {
  leave("process 1 on the moon\n", 0644);
  LockFile lock(file());
  EXPECT_FALSE(lock.try_take());
  EXPECT_EQ(mode(), 0600u);
  EXPECT_EQ(entries(), 1);
}

TEST_F(LockFileTest, AnEarlierVersionThatRunsHasItsLock) {
  leave("process 1 on the moon\n", 0644);
  const UniqueFd earlier(::open(file().c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(earlier.get(), F_OFD_SETLK, &whole), 0);
  const auto holder = LockFile(file()).try_take();
  ASSERT_TRUE(holder);
  EXPECT_EQ(holder->who, "process 1 on the moon");
  EXPECT_EQ(entries(), 1);
}

TEST_F(LockFileTest, WhoReplacesAnEarlierVersionsFileDoesSoAlone) {
  leave("process 1 on the moon\n", 0644);
  LockFile guard(file().string() + ".new");
  ASSERT_FALSE(guard.try_take());
  EXPECT_TRUE(LockFile(file()).try_take());
}

TEST_F(LockFileTest, AFileOfSomebodyElsesStaysAsItIs) {
  for (const mode_t mode : {0600, 0644}) {
    leave("years of work\n", mode);
    EXPECT_THROW(LockFile(file()).try_take(), UsageError);
    EXPECT_EQ(entries(), 1);
    EXPECT_EQ(fs::file_size(file()), 14u);
  }
}

TEST_F(LockFileTest, AStrangersLockOnWhatItMayReadKeepsNobodyOut) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may make a process of another user";
  leave("process 1 on the moon\n", 0644);
  const StrangersLock reader(file(), StrangersWay::read_lock);
  const StrangersLock folder(folder_, StrangersWay::flock);
  LockFile lock(file());
  const auto holder = lock.try_take();
  EXPECT_FALSE(holder) << holder->who;
  EXPECT_EQ(mode(), 0600u);
  EXPECT_TRUE(LockFile(file()).try_take());
}

}  // namespace
}  // namespace lockstep
