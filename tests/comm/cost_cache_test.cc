// The cache of costs that the first meeting of processes leaves behind.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/worker_process.h"

namespace lockstep::testing {
namespace {

class CostCache : public ::testing::Test {
 protected:
  // What two workers write when they meet with this cache folder.
  std::vector<std::string> meet(const std::string& folder) {
    const std::string job = new_job();
    std::vector<Worker> workers;
    for (int r = 0; r < 2; ++r)
      // On a busy machine measuring takes long, which is then said: not here.
      workers.emplace_back(WorkerOptions{
          .variables = variables_of(job, r, 2, {"LOCKSTEP_CACHE_DIR=" + folder, "LOCKSTEP_WARN_AFTER_S=0"})});
    std::vector<std::string> texts;
    for (Worker& worker : workers) {
      texts.push_back(worker.finish());
      EXPECT_EQ(worker.status(), 0) << texts.back();
    }
    return texts;
  }
  std::vector<std::filesystem::path> files(const std::filesystem::path& folder) const {
    std::vector<std::filesystem::path> found;
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path());
    return found;
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string kQuiet = "ok sum 3 nodes 1 local 2\n";
  Folder folder_;
};

TEST_F(CostCache, IsMadeOnceAndUsedAgain) {
  const std::filesystem::path cache = folder_.path() / "a" / "b";
  EXPECT_EQ(meet(cache.string()), (std::vector<std::string>{kQuiet, kQuiet}));
  ASSERT_EQ(files(cache).size(), 1U);
  const std::filesystem::path table = files(cache)[0];
  const std::string first = read(table);
  EXPECT_NE(first.find("barrier_s"), std::string::npos);
  const auto when = std::filesystem::last_write_time(table);
  EXPECT_EQ(meet(cache.string()), (std::vector<std::string>{kQuiet, kQuiet}));
  EXPECT_EQ(files(cache).size(), 1U);
  EXPECT_EQ(read(table), first);
  EXPECT_EQ(std::filesystem::last_write_time(table), when);
}

TEST_F(CostCache, WhatIsNoFileIsNotReadAndReplaced) {
  (void)meet(folder_.path().string());
  ASSERT_EQ(files(folder_.path()).size(), 1U);
  const std::filesystem::path table = files(folder_.path())[0];
  for (const bool pipe : {true, false}) {
    std::filesystem::remove(table);
    ASSERT_EQ(pipe ? ::mkfifo(table.c_str(), 0600) : ::symlink("/dev/zero", table.c_str()), 0);
    EXPECT_EQ(meet(folder_.path().string()), (std::vector<std::string>{kQuiet, kQuiet}));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(table)));
    EXPECT_NE(read(table).find("barrier_s"), std::string::npos);
  }
}

TEST_F(CostCache, GarbageIsReplacedWithAWarning) {
  (void)meet(folder_.path().string());
  ASSERT_EQ(files(folder_.path()).size(), 1U);
  const std::filesystem::path table = files(folder_.path())[0];
  for (const char* garbage : {"garbage", "{\"version\": 1}", "\xff\xff", "[[[["}) {
    std::ofstream(table) << garbage;
    const auto texts = meet(folder_.path().string());
    EXPECT_NE(texts[0].find("not a cost table"), std::string::npos) << texts[0];
    EXPECT_NE(texts[0].find(table.filename().string()), std::string::npos) << texts[0];
    EXPECT_TRUE(texts[0].ends_with(kQuiet)) << texts[0];
    EXPECT_EQ(texts[1], kQuiet);
    EXPECT_NE(read(table).find("barrier_s"), std::string::npos);
  }
  std::ofstream(table).close();  // empty: as if it were not there
  EXPECT_EQ(meet(folder_.path().string()), (std::vector<std::string>{kQuiet, kQuiet}));
}

TEST_F(CostCache, AFolderThatCannotBeIsNoTrouble) {
  std::ofstream(folder_.path() / "file") << "x";
  EXPECT_EQ(meet((folder_.path() / "file" / "below").string()), (std::vector<std::string>{kQuiet, kQuiet}));
  EXPECT_EQ(meet("/proc/nowhere"), (std::vector<std::string>{kQuiet, kQuiet}));
  EXPECT_EQ(meet("off"), (std::vector<std::string>{kQuiet, kQuiet}));
  EXPECT_EQ(files(folder_.path()).size(), 1U);
}

}  // namespace
}  // namespace lockstep::testing
