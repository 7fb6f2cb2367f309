#include "optim/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(Crew, DoesEveryPartOnce) {
  Crew crew;
  for (const std::size_t threads : {1, 2, 5, 3})
    for (const std::size_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> done(count);
      crew.run(count, threads, [&](std::size_t i) { ++done[i]; });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(done[i], 1) << "part " << i << " of " << count;
    }
}

// Each part waits until all others have started, so it ends only if every thread takes one.
TEST(Crew, ReallyUsesItsThreads) {
  Crew crew;
  std::atomic<int> started = 0;
  std::set<std::thread::id> who;
  std::mutex mutex;
  crew.run(3, 3, [&](std::size_t) {
    ++started;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (started < 3 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    who.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(who.size(), 3U);
}

TEST(Crew, TakesOverTheFloatingPointEnvironment) {
  Crew crew;
  std::atomic<int> started = 0;
  std::atomic<int> upward = 0;
  std::fesetround(FE_UPWARD);
  crew.run(2, 2, [&](std::size_t) {
    ++started;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (started < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    upward += std::fegetround() == FE_UPWARD ? 1 : 0;
  });
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(upward, 2);
  upward = 0;
  started = 0;
  crew.run(2, 2, [&](std::size_t) {
    ++started;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (started < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    upward += std::fegetround() == FE_UPWARD ? 1 : 0;
  });
  EXPECT_EQ(upward, 0);
}

}  // namespace
}  // namespace lockstep
