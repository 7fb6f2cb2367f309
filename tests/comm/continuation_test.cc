// What lockstep/comm/work.h promises of work that goes on: then, on_done, when_all, promises.
#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "comm/expect_error.h"
#include "comm/log_lines.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/clock.h"
#include "lockstep/comm/work.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

const InitOptions kInTime{.timeout = std::chrono::seconds(20)};

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    return problem.what();
  }
}

std::exception_ptr error_of(const std::string& text) { return std::make_exception_ptr(UsageError(text)); }

TEST(Continuation, RunsBeforeTheNextCallBegins) {
  on_threads(thread_groups(3, kInTime), [](const Group& g) {
    std::vector<float> x(1000, 1);
    for (int round = 0; round < 20; ++round) {
      x.assign(1000, 1);
      const Work doubled = g.all_reduce_async(buffer(x)).then([&] {
        for (float& value : x) value *= 2;
      });
      g.broadcast(buffer(x), round % 3);  // blocking: begins after the doubling, on every rank
      EXPECT_TRUE(doubled.done());
      ASSERT_EQ(x, std::vector<float>(1000, 6));
    }
  });
}

TEST(Continuation, OfOneWorkTheyRunInTheOrderInWhichTheyWereGiven) {
  std::latch go(1);
  on_threads(thread_groups(2, kInTime), [&](const Group& g) {
    if (g.rank() == 1) go.wait();
    std::vector<int> order;
    std::vector<std::thread::id> threads;
    const Work barrier = g.barrier_async();
    std::vector<Work> all;
    for (int i = 0; i < 5; ++i)
      all.push_back(barrier.then([&, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
      }));
    if (g.rank() == 0) go.count_down();
    when_all(all).wait();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
    if (g.rank() != 0) return;
    // Rank 1 came after all were given: the group's own thread, one and the same, ran them.
    for (const auto id : threads) EXPECT_EQ(id, threads[0]);
    EXPECT_NE(threads[0], std::this_thread::get_id());
  });
}

TEST(Continuation, OfWorkThatIsDoneRunsAtOnceOnTheCaller) {
  const auto here = std::this_thread::get_id();
  std::thread::id ran;
  EXPECT_TRUE(Work().then([&] { ran = std::this_thread::get_id(); }).done());
  EXPECT_EQ(ran, here);
  WorkPromise promise;
  promise.set_done();
  ran = {};
  EXPECT_TRUE(promise.work().then([&] { ran = std::this_thread::get_id(); }).done());
  EXPECT_EQ(ran, here);
}

TEST(Continuation, AnErrorPassesByAndArrivesAtTheEnd) {
  std::latch told(1);
  on_threads(thread_groups(2, kInTime), [&](const Group& g) {
    if (g.rank() == 1) return told.wait();
    float x = 0;
    bool ran = false;
    const Work failed = g.recv_async(Buffer{&x, 1, DType::f32}, 1, {.timeout = milliseconds(50)});
    const Work later = failed.then([&] { ran = true; }).then([&] { ran = true; });
    std::string seen;
    failed.on_done([&](const std::exception_ptr& error) { seen = text_of(error); });
    expect_error<TimeoutError>([&] { later.wait(); }, {"rank 1"});
    expect_error<TimeoutError>([&] { when_all({Work(), later, failed}).wait(); }, {"rank 1"});
    EXPECT_FALSE(ran);
    EXPECT_NE(seen.find("rank 1"), std::string::npos) << seen;
    told.count_down();
  });
}

TEST(Continuation, WhatItThrowsIsItsWorksErrorAndFailsNoGroup) {
  on_threads(thread_groups(2, kInTime), [](const Group& g) {
    const Work bad = g.barrier_async().then([] { throw std::runtime_error("flat battery"); });
    bool ran = false;
    const Work after = bad.then([&] { ran = true; });
    try {
      after.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "flat battery");
    }
    EXPECT_FALSE(ran);
    EXPECT_EQ(g.all_reduce(1), 2);
  });
}

TEST(Continuation, MayGoOnWithAnotherCallOfItsGroup) {
  on_threads(thread_groups(3, kInTime), [](const Group& g) {
    std::vector<float> x(100, static_cast<float>(g.rank()));
    std::vector<float> all(300);
    const Work chain = g.all_reduce_async(buffer(x))
                           .then([&] { return g.all_gather_async(buffer(x), buffer(all)); })
                           .then([&] { return g.all_reduce_async(buffer(all)); });
    chain.wait();
    EXPECT_EQ(all, std::vector<float>(300, 9));
    const WorkTiming timing = chain.timing();
    EXPECT_GT(timing.begin_ns, 0);
    EXPECT_GE(timing.end_ns, timing.begin_ns);
    EXPECT_FALSE(timing.algorithm.empty());
  });
}

TEST(Continuation, NothingMayWaitInIt) {
  std::latch go(1);
  on_threads(thread_groups(2, kInTime), [&](const Group& g) {
    if (g.rank() == 1) {
      g.barrier();
      go.wait();
      g.barrier();
      return;
    }
    Work never = WorkPromise().work();  // done, with an error
    WorkPromise open;
    Work second;
    std::vector<std::string> lines;
    const Work first = g.barrier_async().then([&] {
      second = g.barrier_async();
      for (const auto& wait : std::vector<std::function<void()>>{
               [&] { second.wait(); }, [&] { (void)second.wait_for(milliseconds(5)); },
               [&] { open.work().wait(); }, [&] { g.barrier(); }, [&] { (void)g.split(0); },
               [&] { (void)g.all_reduce(1); }})
        lines.push_back(expect_error<UsageError>(wait, {"then()", "accepted"}));
      EXPECT_FALSE(second.wait_for(milliseconds(0)));  // to ask is no wait
      expect_error<SystemError>([&] { never.wait(); }, {"promise"});
    });
    first.wait();
    EXPECT_NE(lines.at(3).find("barrier"), std::string::npos) << lines[3];
    // The same where it runs at once.
    expect_error<UsageError>([&] { Work().then([&] { open.work().wait(); }).wait(); }, {"then()"});
    open.set_done();
    go.count_down();
    second.wait();
  });
}

TEST(Continuation, MayHoldTheLastHandleOfItsGroup) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Work> works(3);
    std::vector<float> sums(3);
    with_own_groups(thread_groups(3, kInTime), [&](Group g) {
      const auto r = static_cast<std::size_t>(g.rank());
      sums[r] = 1;
      const Buffer x{&sums[r], 1, DType::f32};
      Group mine = std::move(g);
      const Work first = mine.all_reduce_async(x);
      // What the last handle leaves in the queue is still done.
      works[r] = first.then([mine, x] {
        (void)mine.all_reduce_async(x);
        return mine.all_reduce_async(x);
      });
    });
    when_all(works).wait();
    EXPECT_EQ(sums, std::vector<float>(3, 27));
  }
}

// A program may end what the function refers to as soon as the work has ended.
TEST(Continuation, WhatItHoldsGoesBeforeAnybodyHearsOfTheEnd) {
  struct Slow {
    explicit Slow(std::atomic<bool>& gone_) : gone(gone_) {}
    ~Slow() {
      std::this_thread::sleep_for(milliseconds(100));
      gone = true;
    }
    std::atomic<bool>& gone;
  };
  for (const bool fails : {false, true}) {
    std::atomic<bool> gone = false;
    WorkPromise promise;
    const Work after = promise.work().then([held = std::make_shared<Slow>(gone)] {});
    std::thread other([fails, mine = std::move(promise)]() mutable {
      fails ? mine.set_error(error_of("flat battery")) : mine.set_done();
    });
    try {
      after.wait();
      EXPECT_FALSE(fails);
    } catch (const UsageError& error) {
      EXPECT_TRUE(fails);
    }
    EXPECT_TRUE(gone) << (fails ? "after an error" : "after success");
    other.join();
  }
}

// Destroying a group waits for its calls; in a continuation nothing waits. Rank 1 makes its part of the call
// under way only behind a barrier that rank 0 comes to afterwards: on the continuation's own thread, or,
// where the work it follows `is_done` when it is given, on the caller's.
void let_go_of_another_group(bool is_done) {
  on_threads(thread_groups(2, kInTime), [&](const Group& world) {
    Group part = world.split(0);
    std::vector<float> x(10, 1);
    if (world.rank() == 0) {
      const Work reduced = part.all_reduce_async(buffer(x));
      const Work met = world.barrier_async();
      if (is_done) met.wait();
      const Work let_go = met.then([mine = std::move(part)] {});
      world.barrier();
      let_go.wait();
      reduced.wait();
    } else {
      world.barrier();
      world.barrier();
      part.all_reduce(x);
    }
    EXPECT_EQ(x, std::vector<float>(10, 2));
  });
}

TEST(Continuation, MayLetGoOfAnotherGroupWhoseCallsAreUnderWay) { let_go_of_another_group(false); }

TEST(Continuation, MayLetGoOfItBehindWorkThatIsDone) { let_go_of_another_group(true); }

TEST(Continuation, LongChainsTakeNoStack) {
  WorkPromise promise;
  Work end = promise.work();
  int ran = 0;
  constexpr int kLong = 100'000;
  for (int i = 0; i < kLong; ++i) end = end.then([&] { ++ran; });
  promise.set_done();
  end.wait();
  EXPECT_EQ(ran, kLong);
  auto dropped = std::make_unique<WorkPromise>();
  end = dropped->work();
  for (int i = 0; i < kLong; ++i) end = end.then([&] { ++ran; });
  dropped.reset();
  expect_error<SystemError>([&] { end.wait(); }, {"promise"});
  EXPECT_EQ(ran, kLong);
}

TEST(Continuation, OneThatIsGivenWithinAnotherComesAfterIt) {
  WorkPromise promise;
  std::string order;
  Work inner;
  promise.work().on_done([&](const std::exception_ptr&) {
    inner = promise.work().then([&] { order += "inner "; });
    order += "outer ";
  });
  promise.work().on_done([&](const std::exception_ptr&) { order += "next "; });
  promise.set_done();
  EXPECT_TRUE(inner.done());
  EXPECT_EQ(order, "outer next inner ");
}

TEST(Continuation, WhatACallbackThrowsIsLogged) {
  const LogLines lines;
  WorkPromise promise;
  bool ran = false;
  promise.work().on_done([](const std::exception_ptr&) { throw std::runtime_error("flat battery"); });
  promise.work().on_done([&](const std::exception_ptr& error) { ran = error == nullptr; });
  promise.set_done();
  EXPECT_TRUE(ran);
  EXPECT_EQ(lines.with("flat battery").size(), 1);
}

TEST(WhenAll, EndsAfterAllWithTheFirstErrorOfTheList) {
  std::vector<WorkPromise> promises(4);
  std::vector<Work> works;
  for (const WorkPromise& promise : promises) works.push_back(promise.work());
  const Work all = when_all(works);
  promises[2].set_error(error_of("third"));
  promises[1].set_error(error_of("second"));
  promises[3].set_done();
  EXPECT_FALSE(all.done());
  promises[0].set_done();
  EXPECT_TRUE(all.done());
  expect_error<UsageError>([&] { all.wait(); }, {"second"});
  EXPECT_TRUE(when_all({}).done());
  EXPECT_TRUE(when_all({Work(), Work()}).done());
}

TEST(WhenAll, JoinsWorkOfSeveralGroups) {
  on_threads(thread_groups(4, kInTime), [](const Group& world) {
    const Group pair = world.split(world.rank() / 2);
    std::vector<float> x(5000, 1);
    std::vector<float> y(5000, 1);
    int ends = 0;
    const Work both = when_all({world.all_reduce_async(buffer(x)), pair.all_reduce_async(buffer(y))});
    const Work counted = both.then([&] { ++ends; });
    counted.wait();
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(x, std::vector<float>(5000, 4));
    EXPECT_EQ(y, std::vector<float>(5000, 2));
  });
}

TEST(WhenAll, TimesSpanAll) {
  std::vector<WorkPromise> promises(3);
  const Work all = when_all({promises[0].work(), promises[1].work(), promises[2].work()});
  promises[0].set_done({.begin_ns = 30, .running_ns = 0, .end_ns = 40, .algorithm = "ring"});
  promises[1].set_done({.begin_ns = 10, .running_ns = 20, .end_ns = 25, .algorithm = "ring"});
  promises[2].set_done({.begin_ns = 20, .running_ns = 21, .end_ns = 90, .algorithm = "ring"});
  EXPECT_EQ(all.timing().begin_ns, 10);
  EXPECT_EQ(all.timing().running_ns, 20);
  EXPECT_EQ(all.timing().end_ns, 90);
  EXPECT_EQ(all.timing().algorithm, "ring");
}

TEST(WorkPromise, IsKeptFromAnotherThread) {
  WorkPromise promise;
  std::thread::id ran;
  const Work work = promise.work();
  const Work after = work.then([&] { ran = std::this_thread::get_id(); });
  EXPECT_FALSE(work.done());
  EXPECT_FALSE(after.wait_for(milliseconds(1)));
  std::thread other([mine = std::move(promise)]() mutable {
    WorkTiming timing;
    timing.begin_ns = 7;
    mine.set_done(timing);
  });
  const auto id = other.get_id();
  after.wait();
  other.join();
  EXPECT_EQ(ran, id);
  EXPECT_EQ(work.timing().begin_ns, 7);
  EXPECT_EQ(after.timing().begin_ns, 7);
  EXPECT_GT(after.timing().end_ns, 0);
}

TEST(WorkPromise, DroppedIsAnErrorAndNoHang) {
  Work work;
  Work after;
  {
    WorkPromise promise;
    work = promise.work();
    after = work.then([] {});
    EXPECT_FALSE(after.done());
  }
  expect_error<SystemError>([&] { work.wait(); }, {"never be done", "promise"});
  expect_error<SystemError>([&] { after.wait(); }, {"never be done"});
  WorkPromise replaced;
  work = replaced.work();
  replaced = WorkPromise();
  expect_error<SystemError>([&] { work.wait(); }, {"never be done"});
}

TEST(WorkPromise, IsKeptOnce) {
  WorkPromise promise;
  promise.set_done();
  expect_error<UsageError>([&] { promise.set_done(); }, {"once"});
  expect_error<UsageError>([&] { promise.set_error(error_of("late")); }, {"once"});
  expect_error<UsageError>([&] { WorkPromise().set_error(nullptr); }, {"without an error"});
  promise.work().wait();
}

// An empty Work would be done.
TEST(WorkPromise, HasNoWorkOnceItWasMovedFrom) {
  WorkPromise promise;
  WorkPromise mine = std::move(promise);
  expect_error<UsageError>([&] { (void)promise.work(); }, {"moved"});  // NOLINT(bugprone-use-after-move)
  mine.set_done();
}

}  // namespace
}  // namespace lockstep::testing
