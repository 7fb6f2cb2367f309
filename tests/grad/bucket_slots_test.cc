// Memory for buckets that are there only while they are filled and exchanged.
#include "grad/bucket_slots.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/repeated.h"
#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

// The first bucket is small. Whether its exchange is over when the second begins is a matter of luck, and
// both are to take the memory of two buckets, and not of two large ones.
TEST(BucketSlots, FewBucketsTakeNoMoreThanAllOfThem) {
  constexpr std::size_t kSmall = 1 << 12, kLarge = 24 << 12;
  BucketSlots slots(thread_groups(1).front(), Device());
  for (const bool at_once : {true, false, true, false}) {
    WorkPromise exchange;
    if (at_once) exchange.set_done();
    slots.leave(slots.take(kSmall), exchange.work());
    slots.leave(slots.take(kLarge), Work());
    if (!at_once) exchange.set_done();
    EXPECT_EQ(slots.bytes(), kSmall + kLarge);
  }
}

TEST(BucketSlots, ManyBucketsTakeTheMemoryOfThreeLargeOnesAtMost) {
  BucketSlots slots(thread_groups(1).front(), Device());
  for (int step = 0; step < 3; ++step)
    for (const std::size_t pages : {1, 4, 2, 5, 3, 1, 5, 5, 2}) {
      slots.leave(slots.take(pages << 12), Work());
      EXPECT_LE(slots.bytes(), 3u * 5 << 12);
    }
}

// Where workers may need each other: as long as exchanges end, it is the memory of three; where they do not,
// nobody waits for long. The first one took long enough that the next, slower than the least patience, are
// waited for.
TEST(BucketSlots, WaitsForExchangesThatEndAndNotForEver) {
  static constexpr auto kTakes = BucketSlots::kPatience + std::chrono::milliseconds(10);
  std::optional<BucketSlots> slots;
  const auto memory_of_exchanges_that_end = [&] {
    slots.emplace(thread_groups(1).front(), Device(), BucketSlots::kUnbounded);
    WorkPromise first;
    first.set_done({.begin_ns = 1, .end_ns = 1 + std::chrono::nanoseconds(kTakes).count(), .algorithm = {}});
    slots->leave(slots->take(4096), first.work());
    std::vector<std::jthread> threads;
    for (int bucket = 0; bucket < 8; ++bucket) {
      auto exchange = std::make_shared<WorkPromise>();
      slots->leave(slots->take(4096), exchange->work());
      threads.emplace_back([exchange] {
        std::this_thread::sleep_for(kTakes);
        exchange->set_done();
      });
    }
    return slots->bytes();
  };
  // One that a busy machine ends much later is not waited for: then again.
  std::size_t bytes = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    if ((bytes = memory_of_exchanges_that_end()) <= 3u * 4096) break;
    testing::say_repeated(std::to_string(bytes) + " bytes of buckets whose exchanges end");
  }
  EXPECT_LE(bytes, 3u * 4096);
  // What they wait in vain is a tenth of that; who gets no core in between takes longer, then again.
  constexpr auto kMost = 2 * BucketSlots::kMostPatience;
  std::chrono::nanoseconds took{0};
  for (int attempt = 0; attempt < 5; ++attempt) {
    memory_of_exchanges_that_end();
    std::vector<WorkPromise> never(64);
    const auto begin = std::chrono::steady_clock::now();
    for (const WorkPromise& exchange : never) slots->leave(slots->take(4096), exchange.work());
    took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(slots->bytes(), 60u * 4096);
    for (WorkPromise& exchange : never) exchange.set_done();
    if (took < kMost) break;
    testing::say_repeated("64 waits in vain took " + std::to_string(took.count() / 1'000'000) + " ms");
  }
  EXPECT_LT(took, kMost);
}

}  // namespace
}  // namespace lockstep
