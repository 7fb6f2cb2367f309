// Several threads of each rank: what lockstep/comm/group.h promises of the order of their calls.
#include <atomic>
#include <cstdint>
#include <latch>
#include <thread>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "comm/world/turns.h"

namespace lockstep::testing {
namespace {

const InitOptions kUnhurried{.timeout = std::chrono::seconds(60)};
constexpr int kThreads = 4;

// Runs body(0) … body(kThreads - 1), a thread each.
template <class Body>
void on_four(Body&& body) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&body, t] {
      try {
        body(t);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << t << ": " << error.what();
      }
    });
}

TEST(Threads, CallsOfFourThreadsKeepTheOrderInWhichTheyWereMade) {
  constexpr int kCalls = 200;
  constexpr std::int64_t kPrime = 1'000'003;
  on_threads(thread_groups(3, kUnhurried), [](const Group& g) {
    std::int64_t x = 1;
    const Buffer buffer{&x, 1, DType::i64};
    std::atomic<int> ticket = 0;  // whose call is next: this rank's threads agree with the other ranks' so
    std::vector<Work> works(kCalls);
    on_four([&](int t) {
      for (int i = t; i < kCalls; i += kThreads) {
        for (int now = ticket.load(); now != i; now = ticket.load()) ticket.wait(now);
        // x → 3x + i: any other order gives another number. Thread 3's calls block, with others queued
        // before.
        if (t < 3) {
          works[static_cast<std::size_t>(i)] =
              g.all_reduce_async(buffer).then([&x, i] { x = (x + i) % kPrime; });
        } else {
          g.all_reduce(buffer);
          x = (x + i) % kPrime;
        }
        ticket = i + 1;
        ticket.notify_all();
      }
    });
    when_all(works).wait();
    std::int64_t expected = 1;
    for (int i = 0; i < kCalls; ++i) expected = (3 * expected + i) % kPrime;
    EXPECT_EQ(x, expected);
  });
}

TEST(Threads, BlockingCallsOfFourThreadsRunOneAtATime) {
  on_threads(thread_groups(2, kUnhurried), [](const Group& g) {
    on_four([&](int) {
      std::vector<float> x(300);
      for (int i = 0; i < 100; ++i) {
        x.assign(300, 1);
        if (i % 2 == 0)
          g.all_reduce(x);
        else
          g.all_reduce_async(buffer(x)).wait();
        ASSERT_EQ(x, std::vector<float>(300, 2)) << "round " << i;
      }
    });
  });
}

TEST(Threads, FourWithAGroupEachCallAsTheyLike) {
  on_threads(thread_groups(3, kUnhurried), [](const Group& world) {
    std::vector<Group> groups;
    for (int t = 0; t < kThreads; ++t) groups.push_back(world.split(0));
    on_four([&](int t) {
      const Group& g = groups[static_cast<std::size_t>(t)];
      for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(g.all_reduce(100 * t + i), 3 * (100 * t + i));
        std::vector<float> x(static_cast<std::size_t>(1 + 50 * t), static_cast<float>(i));
        g.all_reduce_async(buffer(x)).wait();
        ASSERT_EQ(x.back(), static_cast<float>(3 * i));
      }
    });
  });
}

// Calls of more kinds than the group remembers its choices for.
TEST(Threads, QuestionsMayBeAskedWhileCallsRun) {
  constexpr std::size_t kKinds = 97;
  constexpr int kRounds = 100;
  on_threads(thread_groups(1, kUnhurried), [](const Group& g) {
    const auto asks = [&](std::size_t count) { return g.expected_seconds({.count = count}); };
    std::vector<double> alone;
    for (std::size_t count = 1; count <= kKinds; ++count) alone.push_back(asks(count));
    std::atomic<bool> over = false;
    std::atomic<int> others = 0;  // answers that differ
    std::jthread asking([&] {
      for (std::size_t i = 0; !over; ++i) others += asks(1 + i % kKinds) == alone[i % kKinds] ? 0 : 1;
    });
    std::vector<float> x(kKinds);
    for (int round = 0; round < kRounds; ++round)
      for (std::size_t count = 1; count <= kKinds; ++count) g.all_reduce(Buffer{x.data(), count, DType::f32});
    over = true;
    asking.join();
    EXPECT_EQ(others, 0);
  });
}

TEST(Threads, AnErrorPassesTheTurnOn) {
  std::latch told(1);
  on_threads(thread_groups(2, kUnhurried), [&](const Group& g) {
    if (g.rank() == 1) return told.wait();
    float x = 0;
    on_four([&](int) {
      expect_error<TimeoutError>(
          [&] {
            g.recv(Buffer{&x, 1, DType::f32}, 1, {.timeout = std::chrono::milliseconds(50)});
          },
          {"rank 1"});
    });
    told.count_down();
  });
}

TEST(Turns, ComeByNumberWhoeverWaitsFirst) {
  Turns turns;
  std::vector<Turns::Number> numbers;
  for (int t = 0; t < kThreads; ++t) numbers.push_back(turns.take());
  std::vector<Turns::Number> order;  // written by whoever's turn it is
  on_four([&](int t) {
    const Turns::Number mine = numbers[static_cast<std::size_t>(kThreads - 1 - t)];
    turns.await(mine);
    order.push_back(mine);
    turns.pass();
  });
  EXPECT_EQ(order, numbers);
}

}  // namespace
}  // namespace lockstep::testing
