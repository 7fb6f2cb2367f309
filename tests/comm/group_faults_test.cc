// What ranks of one machine are told that disagree, don't come or leave, and that it sticks.
#include <cstdio>
#include <latch>
#include <mutex>

#include "comm/fault_plan.h"
#include "comm/group_cases.h"
#include "comm/patience.h"

namespace lockstep::testing {
namespace {

constexpr milliseconds kSoon = milliseconds(200) * slowness();
// As errors write it: "0.2 s".
std::string in_seconds(milliseconds time) {
  char text[16];
  std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(time).count());
  return text;
}

// Every field in which ranks can differ.
struct Disagreement {
  const char* name;
  std::function<void(const Group&, Buffer, Buffer)> common;  // ranks 0 and 2
  std::function<void(const Group&, Buffer, Buffer)> odd;     // rank 1
  std::string common_says;
  std::string odd_says;
};

std::vector<Disagreement> disagreements() {
  const auto i32 = [](Buffer b) { return Buffer{b.data, b.count, DType::i32}; };
  const auto part = [](Buffer b, std::size_t count) { return Buffer{b.data, count, b.dtype}; };
  const auto sum = [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6)); };
  const std::string sum_says = "all_reduce(f32 × 6, sum)";
  return {
      {"operation", sum, [=](const Group& g, Buffer x, Buffer y) { g.all_gather(part(x, 6), part(y, 18)); },
       sum_says, "all_gather(f32 × 6)"},
      {"count", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 7)); }, sum_says,
       "all_reduce(f32 × 7, sum)"},
      {"nothing", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 0)); }, sum_says,
       "all_reduce(f32 × 0, sum)"},
      {"large count", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(x); }, sum_says,
       "all_reduce(f32 × 200000, sum)"},
      {"dtype", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(i32(x), 6)); }, sum_says,
       "all_reduce(i32 × 6, sum)"},
      {"op", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6), {.op = ReduceOp::max}); },
       sum_says, "all_reduce(f32 × 6, max)"},
      {"algorithm", sum,
       [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6), {.algorithm = "halving-doubling"}); },
       sum_says, "by halving-doubling"},
      {"order", sum,
       [=](const Group& g, Buffer x, Buffer) { g.all_reduce(part(x, 6), {.order = Order::any}); }, sum_says,
       "any order"},
      {"root", [=](const Group& g, Buffer x, Buffer) { g.broadcast(part(x, 6), 0); },
       [=](const Group& g, Buffer x, Buffer) { g.broadcast(part(x, 6), 2); }, "root 0", "root 2"},
      {"barrier", sum, [](const Group& g, Buffer, Buffer) { g.barrier(); }, sum_says, "barrier("},
      {"split", sum, [](const Group& g, Buffer, Buffer) { (void)g.split(0); }, sum_says, "split("},
      {"reduce_scatter",
       [=](const Group& g, Buffer x, Buffer y) { g.reduce_scatter(part(x, 6), part(y, 2)); },
       [=](const Group& g, Buffer x, Buffer y) { g.reduce_scatter(part(x, 9), part(y, 3)); },
       "reduce_scatter(f32 × 2, sum)", "reduce_scatter(f32 × 3, sum)"},
      {"asynchronous", sum, [=](const Group& g, Buffer x, Buffer) { g.all_reduce_async(part(x, 5)).wait(); },
       sum_says, "all_reduce(f32 × 5, sum)"},
  };
}

TEST(Mismatch, EveryRankIsToldWhoCalledWhatAndItSticks) {
  for (const Disagreement& d : disagreements())
    for (const bool comm : {false, true}) {
      SCOPED_TRACE(d.name);
      std::mutex mutex;
      std::vector<std::string> lines;
      on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& g) {
        constexpr std::size_t count = 200'000;
        Floats own_x(count);
        Floats own_y(count);
        const CommMemory x = g.allocate(count * 4);
        const CommMemory y = g.allocate(count * 4);
        const Buffer a{comm ? x.data() : own_x.data(), count, DType::f32};
        const Buffer b{comm ? y.data() : own_y.data(), count, DType::f32};
        expect_usable(g);
        const std::string line = expect_error<MismatchError>(
            [&] { (g.rank() == 1 ? d.odd : d.common)(g, a, b); },
            {"operation 2", "world", "rank 0, 2 called", "rank 1 called", d.common_says, d.odd_says});
        const milliseconds again =
            time_of([&] { EXPECT_EQ(expect_error<MismatchError>([&] { g.all_reduce(a); }), line); });
        EXPECT_LT(again, std::chrono::seconds(10));  // at once, not after the group's 20 s
        EXPECT_EQ(expect_error<MismatchError>([&] { g.barrier(); }), line);
        EXPECT_EQ(expect_error<MismatchError>([&] { g.all_reduce_async(a).wait(); }), line);
        EXPECT_EQ(expect_error<MismatchError>([&] { (void)g.split(0); }), line);
        EXPECT_EQ(expect_error<MismatchError>([&] { g.send(a, (g.rank() + 1) % 3); }), line);
        const std::lock_guard lock(mutex);
        lines.push_back(line);
      });
      ASSERT_EQ(lines.size(), 3U);
      EXPECT_EQ(lines[0], lines[1]);
      EXPECT_EQ(lines[0], lines[2]);
    }
}

// Rank 0's time runs out when rank 2 has come too; ranks 1 and 3 come when both have been told.
TEST(Timeout, OfTheCallNamesTheMissing) {
  expect_seen("1 3", 4, kSoon, [](milliseconds patience, Seen& seen) {
    std::latch coming(1);
    std::latch told(2);
    on_threads(thread_groups(4, {.timeout = std::chrono::minutes(5)}), [&](const Group& g) {
      Floats x(10);
      g.barrier();
      if (g.rank() == 1 || g.rank() == 3) told.wait();
      if (g.rank() == 2) coming.count_down();
      if (g.rank() == 0) coming.wait();
      const milliseconds took = time_of([&] {
        try {
          g.all_reduce(buffer(x), {.timeout = g.rank() == 0 ? patience : milliseconds(240'000)});
          ADD_FAILURE() << "rank " << g.rank() << " got through";
        } catch (const TimeoutError& error) {
          seen.note(error.missing());
          const std::string line = error.what();
          for (const char* part :
               {"all_reduce(f32 × 10, sum)", "operation 2", "world", "missing: rank 1", "rank 3"})
            EXPECT_NE(line.find(part), std::string::npos) << line;
          EXPECT_NE(line.find("within " + in_seconds(patience)), std::string::npos) << line;
        }
      });
      if (g.rank() == 0 || g.rank() == 2) told.count_down();
      EXPECT_LT(took, std::chrono::seconds(60));  // not the group's own
      expect_error<TimeoutError>([&] { g.barrier(); }, {"missing: rank 1"});
    });
  });
}

TEST(Timeout, OfTheGroupHoldsForEveryCall) {
  on_threads(thread_groups(2, {.timeout = kSoon}), [](const Group& g) {
    Floats x(10);
    if (g.rank() == 0)
      expect_error<TimeoutError>([&] { g.recv(buffer(x), 1); },
                                 {"recv(f32 × 10", in_seconds(kSoon), "missing: rank 1"});
  });
  on_threads(thread_groups(2, {.timeout = kSoon}), [](const Group& g) {
    Floats x(1 << 20);  // more than fits between the two
    if (g.rank() == 0)
      expect_error<TimeoutError>([&] { g.send(buffer(x), 1); }, {"send(", "missing: rank 1"});
  });
  on_threads(thread_groups(2, {.timeout = kSoon}), [](const Group& g) {
    if (g.rank() == 0) expect_error<TimeoutError>([&] { (void)g.split(0); }, {"split(", "missing: rank 1"});
  });
}

TEST(Timeout, TheLongestIsNotShort) {
  on_threads(thread_groups(2, {.timeout = milliseconds::max()}), [](const Group& g) {
    if (g.rank() == 1) std::this_thread::sleep_for(milliseconds(150));
    g.barrier();
    if (g.rank() == 0) std::this_thread::sleep_for(milliseconds(150));
    g.barrier({.timeout = milliseconds::max()});
  });
  expect_error<UsageError>([] { (void)thread_groups(1, {.timeout = milliseconds(-1)}); },
                           {"timeout", "-1 ms"});
}

TEST(Peer, ThatLeftIsNamed) {
  with_own_groups(thread_groups(3, {.timeout = std::chrono::minutes(5)}), [](Group g) {
    g.barrier();
    if (g.rank() == 1) return;
    try {
      g.barrier();
      ADD_FAILURE() << "rank " << g.rank() << " got through";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_NE(std::string(error.what()).find("rank 1 left group world"), std::string::npos) << error.what();
    }
    expect_error<PeerError>([&] { g.barrier(); }, {"rank 1"});
  });
}

// What a peer did before it left still counts.
TEST(Peer, ThatLeftAfterTheLastCallDisturbsNobody) {
  for (int round = 0; round < 300; ++round)
    with_own_groups(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [](Group g) {
      Floats x(3000, static_cast<float>(g.rank()));
      if (g.rank() == 0) g.recv(buffer(x), 2);
      if (g.rank() == 2) g.send(buffer(x), 0);
      g.all_reduce(buffer(x));
      EXPECT_EQ(x.back(), 5);
    });
}

}  // namespace
}  // namespace lockstep::testing
