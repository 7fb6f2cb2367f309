#include "base/core_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(CoreWait, IsTheSumOverThreads) {
  std::string folder = (fs::path(::testing::TempDir()) / "core-wait-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const fs::path proc = folder;
  for (const auto& [thread, text] :
       {std::pair("11", "5 1500000000 3"), {"12", "7 250000000 1"}, {"13", ""}}) {
    fs::create_directories(proc / "self/task" / thread);
    std::ofstream(proc / "self/task" / thread / "schedstat") << text;
  }
  EXPECT_DOUBLE_EQ(seconds_without_core(proc), 1.75);
  EXPECT_EQ(seconds_without_core(proc / "nothing"), 0);
  fs::remove_all(proc);
}

// Of twice as many threads as there are cores half wait at any time.
TEST(CoreWait, GrowsWhereThereAreMoreThreadsThanCores) {
  std::atomic<bool> ends = false;
  double waited = 0;
  {
    std::vector<std::jthread> busy;
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
      busy.emplace_back([&] {
        while (!ends) {
        }
      });
    const double before = seconds_without_core();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    waited = seconds_without_core() - before;
    ends = true;
  }
  if (fs::exists("/proc/self/schedstat"))
    EXPECT_GT(waited, 0.01);
  else
    EXPECT_EQ(waited, 0);  // this kernel does not tell
}

}  // namespace
}  // namespace lockstep
