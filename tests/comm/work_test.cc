// What lockstep/comm/work.h promises: order, handles, and groups that go while work is under way.
#include "lockstep/comm/work.h"

#include <atomic>
#include <latch>
#include <optional>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using Floats = std::vector<float>;

const InitOptions kPatient{.timeout = std::chrono::seconds(20)};

TEST(Work, EmptyIsDone) {
  const Work none;
  EXPECT_TRUE(none.done());
  EXPECT_TRUE(none.wait_for(milliseconds(0)));
  none.wait();
}

TEST(Work, CallsRunInTheOrderInWhichTheyWereMade) {
  on_threads(thread_groups(3, kPatient), [](const Group& g) {
    // Each step depends on the one before: x → sum → broadcast → max …, blocking and asynchronous mixed.
    Floats x(2000, static_cast<float>(g.rank() + 1));
    float expected = 6;
    for (int round = 0; round < 30; ++round) {
      const Work first = g.all_reduce_async(buffer(x));                          // 6 everywhere
      const Work second = g.all_reduce_async(buffer(x), {.op = ReduceOp::avg});  // still 6
      if (round % 3 == 0) g.barrier();
      const Work third = g.broadcast_async(buffer(x), round % 3);
      g.all_reduce(buffer(x), {.op = ReduceOp::max});  // waits for the three
      EXPECT_TRUE(first.done() && second.done() && third.done());
      ASSERT_EQ(x, Floats(2000, expected));
      for (float& value : x) value = static_cast<float>(g.rank() + 1 + round);
      expected = static_cast<float>(6 + 3 * round);
    }
  });
}

TEST(Work, HundredsMayBeUnderWay) {
  constexpr int kMany = 400;
  on_threads(thread_groups(4, kPatient), [](const Group& g) {
    std::vector<Floats> xs;
    std::vector<Work> works;
    for (int i = 0; i < kMany; ++i)
      xs.emplace_back(static_cast<std::size_t>(1 + i * 13), static_cast<float>(i + g.rank()));
    for (int i = 0; i < kMany; ++i) {
      std::string algorithm = i % 2 == 0 ? "direct" : "tree";  // gone before the call runs
      works.push_back(g.all_reduce_async(buffer(xs[static_cast<std::size_t>(i)]), {.algorithm = algorithm}));
      algorithm.assign("xxxxxx");
    }
    std::vector<std::int32_t> all(4);
    const std::int32_t own = g.rank();
    g.all_gather(ConstBuffer(&own, 1, DType::i32), buffer(all));
    EXPECT_EQ(all, (std::vector<std::int32_t>{0, 1, 2, 3}));
    for (int i = kMany; i-- > 0;) {
      works[static_cast<std::size_t>(i)].wait();
      EXPECT_EQ(xs[static_cast<std::size_t>(i)].back(), static_cast<float>(4 * i + 6));
    }
  });
}

TEST(Work, WaitForSaysWhetherItIsDone) {
  std::latch go(1);
  on_threads(thread_groups(2, kPatient), [&](const Group& g) {
    Floats x(100, 1);
    if (g.rank() == 1) go.wait();
    const Work work = g.all_reduce_async(buffer(x));
    const Work copy = work;
    if (g.rank() == 0) {
      EXPECT_FALSE(work.done());
      EXPECT_FALSE(work.wait_for(milliseconds(0)));
      EXPECT_FALSE(copy.wait_for(milliseconds(50)));
      go.count_down();
    }
    EXPECT_TRUE(copy.wait_for(milliseconds::max()));
    EXPECT_TRUE(work.done());
    EXPECT_TRUE(work.wait_for(milliseconds(-1)));
    work.wait();
    EXPECT_EQ(x[99], 2);
  });
}

TEST(Work, EveryCopyRethrowsEveryTime) {
  on_threads(thread_groups(2, kPatient), [](const Group& g) {
    if (g.rank() == 1) return;
    Floats x(100);
    const Work work = g.all_reduce_async(buffer(x), {.timeout = milliseconds(100)});
    const Work queued = g.barrier_async();
    const Work copy = work;
    for (int i = 0; i < 2; ++i) {
      expect_error<TimeoutError>([&] { work.wait(); }, {"missing: rank 1"});
      expect_error<TimeoutError>([&] { (void)copy.wait_for(milliseconds(1)); }, {"missing: rank 1"});
      expect_error<TimeoutError>([&] { queued.wait(); }, {"missing: rank 1"});
    }
    EXPECT_TRUE(copy.done());
  });
}

TEST(Work, DroppingTheHandleDoesNotCancelAndTheGroupWaitsForIt) {
  std::vector<Floats> xs(3, Floats(50'000, 1));
  with_own_groups(thread_groups(3, kPatient), [&](Group g) {
    Floats& x = xs[static_cast<std::size_t>(g.rank())];
    for (int i = 0; i < 5; ++i) (void)g.all_reduce_async(buffer(x));
  });
  for (const Floats& x : xs) EXPECT_EQ(x, Floats(50'000, 243));
}

TEST(Work, OutlivesItsGroup) {
  std::vector<Work> works(2);
  Floats x(10);
  std::latch called(1);
  with_own_groups(thread_groups(2, {.timeout = milliseconds(300)}), [&](Group g) {
    if (g.rank() == 0) {
      works[0] = g.all_reduce_async(buffer(x));  // nobody else comes
      works[1] = g.barrier_async();
      called.count_down();
      return;
    }
    called.wait();
    while (!works[0].done()) std::this_thread::yield();  // who leaves before that is gone, not missing
  });
  EXPECT_TRUE(works[0].done());
  expect_error<TimeoutError>([&] { works[0].wait(); }, {"missing: rank 1"});
  expect_error<TimeoutError>([&] { works[1].wait(); }, {"missing: rank 1"});
}

TEST(Work, EveryCollectiveHasItsAsynchronousForm) {
  on_threads(thread_groups(2, kPatient), [](const Group& g) {
    const auto me = static_cast<float>(g.rank());
    Floats two = {me, me + 10};
    Floats one = {me};
    Floats out2(2);
    Floats out1(1);
    g.all_reduce_async(buffer(two), buffer(out2)).wait();
    EXPECT_EQ(out2, (Floats{1, 21}));
    g.reduce_scatter_async(buffer(two), buffer(out1)).wait();
    EXPECT_EQ(out1[0], g.rank() == 0 ? 1 : 21);
    g.all_gather_async(buffer(one), buffer(out2)).wait();
    EXPECT_EQ(out2, (Floats{0, 1}));
    g.all_to_all_async(buffer(two), buffer(out2)).wait();
    EXPECT_EQ(out2, g.rank() == 0 ? (Floats{0, 1}) : (Floats{10, 11}));
    g.reduce_async(buffer(one), g.rank() == 1 ? buffer(out1) : Buffer{}, 1).wait();
    if (g.rank() == 1) {
      EXPECT_EQ(out1[0], 1);
    }
    g.gather_async(buffer(one), g.rank() == 1 ? buffer(out2) : Buffer{}, 1).wait();
    if (g.rank() == 1) {
      EXPECT_EQ(out2, (Floats{0, 1}));
    }
    g.scatter_async(g.rank() == 1 ? ConstBuffer(buffer(two)) : ConstBuffer{}, buffer(out1), 1).wait();
    EXPECT_EQ(out1[0], g.rank() == 0 ? 1 : 11);
    g.broadcast_async(buffer(one), 1).wait();
    EXPECT_EQ(one[0], 1);
    const Work message = g.rank() == 0 ? g.send_async(buffer(two), 1) : g.recv_async(buffer(out2), 0);
    message.wait();
    if (g.rank() == 1) {
      EXPECT_EQ(out2, (Floats{0, 10}));
    }
    g.barrier_async().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
