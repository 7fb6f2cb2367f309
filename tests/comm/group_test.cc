// What lockstep/comm/group.h promises about single calls: what is refused and how, what sticks, what ranks
// that disagree or don't come are told.
#include "lockstep/comm/group.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <latch>
#include <limits>
#include <mutex>
#include <numeric>

#include "comm/call/call.h"
#include "comm/call/reach.h"
#include "comm/expect_error.h"
#include "comm/fault_plan.h"
#include "comm/thread_ranks.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using Floats = std::vector<float>;

constexpr milliseconds kSoon = milliseconds(200) * slowness();
// As errors write it: "0.2 s".
std::string soon() {
  char text[16];
  std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(kSoon).count());
  return text;
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The group still does its work.
void expect_usable(const Group& group) {
  Floats x(5, static_cast<float>(group.rank() + 1));
  group.all_reduce(buffer(x));
  const int n = group.size();
  EXPECT_EQ(x, Floats(5, static_cast<float>(n * (n + 1)) / 2));
}

TEST(EmptyGroup, EveryCallIsAnError) {
  const Group none;
  EXPECT_FALSE(none);
  Floats x(4);
  Floats y(4);
  const ConstBuffer in = buffer(x);
  const Buffer out = buffer(y);
  const std::vector<std::function<void()>> calls = {[&] { (void)none.rank(); },
                                                    [&] { (void)none.size(); },
                                                    [&] { (void)none.name(); },
                                                    [&] { (void)none.engine(); },
                                                    [&] { (void)none.nodes(); },
                                                    [&] { (void)none.allocate(8); },
                                                    [&] { none.all_reduce(out); },
                                                    [&] { none.all_reduce(in, out); },
                                                    [&] { none.reduce_scatter(in, out); },
                                                    [&] { none.all_gather(in, out); },
                                                    [&] { none.broadcast(out, 0); },
                                                    [&] { none.reduce(in, out, 0); },
                                                    [&] { none.gather(in, out, 0); },
                                                    [&] { none.scatter(in, out, 0); },
                                                    [&] { none.all_to_all(in, out); },
                                                    [&] { none.barrier(); },
                                                    [&] { none.send(in, 0); },
                                                    [&] { none.recv(out, 0); },
                                                    [&] { (void)none.all_reduce_async(out); },
                                                    [&] { (void)none.barrier_async(); },
                                                    [&] { (void)none.split(0); },
                                                    [&] { (void)none.split_by_node(); }};
  for (const auto& call : calls) expect_error<UsageError>(call, {"Group is empty"});
}

TEST(Refusals, NameWhatWasWrongAndLeaveTheGroupAsItWas) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    if (g.rank() == 0) {  // local: the other rank knows nothing of it
      Floats x(8);
      Floats y(8);
      std::vector<double> doubles(4);
      const ConstBuffer four(x.data(), 4, DType::f32);
      const ConstBuffer three(x.data(), 3, DType::f32);
      const Buffer to4{y.data(), 4, DType::f32};
      const Buffer to8{y.data(), 8, DType::f32};
      expect_error<UsageError>(
          [&] {
            g.all_reduce(Buffer{nullptr, 3, DType::i64});
          },
          {"all_reduce", "null", "3 i64"});
      expect_error<UsageError>([&] { g.all_reduce(four, to8); }, {"all_reduce", "4 f32", "8 f32"});
      expect_error<UsageError>([&] { g.reduce_scatter(four, to4); }, {"reduce_scatter", "4 f32", "2 ranks"});
      expect_error<UsageError>([&] { g.all_gather(four, to4); }, {"all_gather", "4 f32", "2 ranks"});
      expect_error<UsageError>(
          [&] {
            g.all_to_all(three, Buffer{y.data(), 3, DType::f32});
          },
          {"all_to_all", "3 f32"});
      expect_error<UsageError>([&] { g.gather(four, to4, 0); }, {"gather", "4 f32"});
      expect_error<UsageError>([&] { g.scatter(four, to4, 0); }, {"scatter", "4 f32"});
      expect_error<UsageError>([&] { g.reduce(four, to8, 0); }, {"reduce", "8 f32"});
      expect_error<UsageError>([&] { g.all_reduce(four, buffer(doubles)); }, {"all_reduce", "f32", "f64"});
      expect_error<UsageError>(
          [&] {
            g.all_reduce(Buffer{x.data(), 4, DType::f32, {Device::Kind::cuda, 0}});
          },
          {"all_reduce", "host memory"});
      for (int root : {-1, 2, 1000}) {
        const std::string number = std::to_string(root);
        expect_error<UsageError>([&] { g.broadcast(to4, root); },
                                 {"broadcast", "rank " + number, "world", "0 to 1"});
        expect_error<UsageError>([&] { g.send(four, root); }, {"send", "rank " + number, "0 to 1"});
        expect_error<UsageError>([&] { g.recv(to4, root); }, {"recv", "rank " + number, "0 to 1"});
      }
      expect_error<UsageError>([&] { g.send(four, 0); }, {"send", "rank 0", "itself"});
      expect_error<UsageError>([&] { g.recv(to4, 0); }, {"recv", "rank 0", "itself"});
      expect_error<UsageError>([&] { g.all_reduce(to4, {.algorithm = "magic"}); },
                               {"'magic'", "direct", "ring", "tree", "halving-doubling", "hierarchical"});
      expect_error<UsageError>([&] { g.all_gather(four, to8, {.algorithm = "hierarchical"}); },
                               {"all_gather", "'hierarchical'", "accepted", "ring"});
      expect_error<UsageError>([&] { g.send(four, 1, {.algorithm = "ring"}); },
                               {"send", "no algorithm", "'ring'"});
      Floats large(kEagerBytes / 4 + 1);
      expect_error<UsageError>([&] { g.all_reduce(buffer(large), {.algorithm = "eager"}); },
                               {"eager", std::to_string(kEagerBytes), std::to_string(kEagerBytes + 4)});
      for (ReduceOp op : {ReduceOp::bit_and, ReduceOp::bit_or})
        expect_error<UsageError>([&] { g.all_reduce(to4, {.op = op}); },
                                 {"all_reduce", to_string(op), "integers", "f32"});
      expect_error<UsageError>([&] { g.barrier({.timeout = milliseconds(-5)}); },
                               {"barrier", "timeout", "-5 ms", "positive"});
      expect_error<UsageError>([&] { (void)g.all_reduce_async(four, to8); }, {"all_reduce", "8 f32"});
    }
    expect_usable(g);
  });
}

// Numbers whose product with a type's size or the number of ranks does not fit a word.
TEST(Refusals, CountsThatOverflow) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    Floats x(8);
    constexpr std::size_t half = std::size_t{1} << 63;
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (std::size_t count : {half, most, most / 4 + 2, (std::size_t{1} << 62), (std::size_t{1} << 61)}) {
      const Buffer huge{x.data(), count, DType::f32};
      const ConstBuffer nothing(x.data(), 0, DType::f32);
      expect_error<UsageError>([&] { g.all_reduce(huge); }, {"all_reduce", std::to_string(count)});
      expect_error<UsageError>([&] { g.reduce_scatter(nothing, huge); }, {"reduce_scatter"});
      expect_error<UsageError>([&] { g.all_gather(huge, Buffer{x.data(), 0, DType::f32}); }, {"all_gather"});
      expect_error<UsageError>([&] { g.broadcast(huge, 0); }, {"broadcast"});
      expect_error<UsageError>([&] { g.send(huge, 1 - g.rank()); }, {"send"});
    }
    expect_usable(g);
  });
}

TEST(Overlap, OnlyInPlaceCallsMayShareMemory) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    for (const bool comm : {false, true}) {
      Floats own(64);
      const CommMemory memory = g.allocate(64 * sizeof(float));
      float* const x = comm ? memory.as<float>() : own.data();
      const auto in = [&](std::size_t at, std::size_t count) {
        return ConstBuffer(x + at, count, DType::f32);
      };
      const auto out = [&](std::size_t at, std::size_t count) { return Buffer{x + at, count, DType::f32}; };
      const std::size_t other = g.rank() == 0 ? 4 : 0;  // the slice that is not this rank's
      const std::vector<std::string> says = {"overlap", "in-place"};
      expect_error<UsageError>([&] { g.all_reduce(in(0, 8), out(1, 8)); }, says);
      expect_error<UsageError>([&] { g.all_reduce(in(7, 8), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.reduce_scatter(in(0, 8), out(other, 4)); }, says);
      expect_error<UsageError>([&] { g.reduce_scatter(in(0, 8), out(7, 4)); }, says);
      expect_error<UsageError>([&] { g.all_gather(in(other, 4), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.all_gather(in(2, 4), out(0, 8)); }, says);
      expect_error<UsageError>([&] { g.all_to_all(in(0, 8), out(4, 8)); }, says);
      expect_error<UsageError>([&] { g.reduce(in(0, 8), out(4, 8), g.rank()); }, says);
      expect_error<UsageError>([&] { g.gather(in(other, 4), out(0, 8), g.rank()); }, says);
      expect_error<UsageError>([&] { g.scatter(in(0, 8), out(other, 4), g.rank()); }, says);
      // Elsewhere than on root the unused buffer is not looked at; touching is not overlapping.
      std::fill_n(x, 64, 1.0F);
      g.all_reduce(in(0, 8), out(8, 8));
      EXPECT_EQ(x[8], 2.0F);
      const auto own_slice = static_cast<std::size_t>(g.rank()) * 4;
      g.reduce_scatter(in(0, 8), out(own_slice, 4));
      g.all_gather(in(own_slice, 4), out(0, 8));
      EXPECT_EQ(Floats(x, x + 8), Floats(8, 2.0F));
      g.all_to_all(in(0, 8), out(0, 8));
      g.gather(in(own_slice, 4), g.rank() == 0 ? out(0, 8) : Buffer{}, 0);
      g.scatter(g.rank() == 1 ? in(0, 8) : ConstBuffer{}, g.rank() == 1 ? out(4, 4) : out(0, 4), 1);
      EXPECT_EQ(Floats(x, x + 8), Floats(8, 2.0F));
    }
  });
}

TEST(Results, AverageLeastAndGreatestOfIntegers) {
  on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    const std::array<std::int32_t, 3> gives = {7, -4, 5};  // sum 8
    for (const char* algorithm : {"", "direct", "tree", "ring", "halving-doubling", "pairwise"}) {
      std::vector<std::int32_t> x(3, gives[static_cast<std::size_t>(g.rank())]);
      std::vector<std::int32_t> avg = x;
      std::vector<std::int32_t> least = x;
      g.all_reduce(buffer(avg), {.op = ReduceOp::avg, .algorithm = algorithm});
      g.all_reduce(buffer(least), {.op = ReduceOp::min, .algorithm = algorithm});
      g.all_reduce(buffer(x), {.op = ReduceOp::max, .algorithm = algorithm});
      EXPECT_EQ(avg, std::vector<std::int32_t>(3, 8 / 3)) << algorithm;
      EXPECT_EQ(least, std::vector<std::int32_t>(3, -4)) << algorithm;
      EXPECT_EQ(x, std::vector<std::int32_t>(3, 7)) << algorithm;
    }
  });
}

TEST(Results, GroupOfOneAndZeroElementsAreOrdinary) {
  on_threads(thread_groups(1), [](const Group& g) {
    EXPECT_EQ(g.name(), "world");
    EXPECT_STREQ(g.engine(), "shm");
    Floats x = {1, 2};
    Floats y(2);
    g.all_reduce(buffer(x));
    g.all_gather(buffer(x), buffer(y));
    EXPECT_EQ(y, x);
    g.all_to_all(buffer(x), buffer(y));
    g.broadcast(buffer(x), 0);
    g.barrier();
    g.all_reduce(Buffer{});
    g.all_reduce_async(Buffer{}).wait();
    EXPECT_EQ(x, (Floats{1, 2}));
    EXPECT_EQ(g.split(3).size(), 1);
  });
}

// Every field in which ranks can differ.
struct Difference {
  const char* name;
  std::function<void(const Group&, Buffer, Buffer)> common;  // ranks 0 and 2
  std::function<void(const Group&, Buffer, Buffer)> odd;     // rank 1
  std::string common_says;
  std::string odd_says;
};

std::vector<Difference> differences() {
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
  for (const Difference& d : differences())
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
        const double again =
            seconds_of([&] { EXPECT_EQ(expect_error<MismatchError>([&] { g.all_reduce(a); }), line); });
        EXPECT_LT(again, 10);  // at once, not after the group's 20 s
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
  std::latch coming(1);
  std::latch told(2);
  on_threads(thread_groups(4, {.timeout = std::chrono::minutes(5)}), [&](const Group& g) {
    Floats x(10);
    g.barrier();
    if (g.rank() == 1 || g.rank() == 3) told.wait();
    if (g.rank() == 2) coming.count_down();
    if (g.rank() == 0) coming.wait();
    const double took = seconds_of([&] {
      try {
        g.all_reduce(buffer(x), {.timeout = g.rank() == 0 ? kSoon : milliseconds(240'000)});
        ADD_FAILURE() << "rank " << g.rank() << " got through";
      } catch (const TimeoutError& error) {
        EXPECT_EQ(error.missing(), (std::vector<int>{1, 3}));
        const std::string line = error.what();
        for (const char* part :
             {"all_reduce(f32 × 10, sum)", "operation 2", "world", "missing: rank 1", "rank 3"})
          EXPECT_NE(line.find(part), std::string::npos) << line;
        EXPECT_NE(line.find("within " + soon()), std::string::npos) << line;
      }
    });
    if (g.rank() == 0 || g.rank() == 2) told.count_down();
    EXPECT_LT(took, 60);  // not the group's own
    expect_error<TimeoutError>([&] { g.barrier(); }, {"missing: rank 1"});
  });
}

TEST(Timeout, OfTheGroupHoldsForEveryCall) {
  on_threads(thread_groups(2, {.timeout = kSoon}), [](const Group& g) {
    Floats x(10);
    if (g.rank() == 0)
      expect_error<TimeoutError>([&] { g.recv(buffer(x), 1); }, {"recv(f32 × 10", soon(), "missing: rank 1"});
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

TEST(Messages, KeepTheirOrderAndMayBeAnySize) {
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [](const Group& g) {
    const std::vector<std::size_t> counts = {0, 1, 15, 16, 17, 1000, 0, 65'536, 65'537, 300'001, 3};
    for (int round = 0; round < 3; ++round)
      for (std::size_t count : counts) {
        std::vector<std::int32_t> x(count);
        std::iota(x.begin(), x.end(), static_cast<std::int32_t>(count) + round);
        if (g.rank() == 0) {
          g.send(buffer(x), 1);
        } else {
          std::vector<std::int32_t> got(count);
          g.recv(buffer(got), 0);
          EXPECT_EQ(got, x);
        }
      }
    // Small ones wait for their receiver; collectives pass between.
    std::vector<std::int64_t> number(1);
    for (std::int64_t i = 0; i < 100 && g.rank() == 0; ++i) {
      number[0] = i;
      g.send(buffer(number), 1);
    }
    expect_usable(g);
    for (std::int64_t i = 0; i < 100 && g.rank() == 1; ++i) {
      g.recv(buffer(number), 0);
      EXPECT_EQ(number[0], i);
    }
  });
}

TEST(Messages, CountsAndTypesMustAgree) {
  struct Case {
    std::size_t sent, received;
    DType sent_as, received_as;
  };
  for (const Case& c : {Case{4, 5, DType::f32, DType::f32}, Case{4, 4, DType::f32, DType::i32},
                        Case{4, 2, DType::f32, DType::f64}, Case{0, 1, DType::f32, DType::f32},
                        Case{9, 0, DType::f32, DType::f32}})
    on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& g) {
      std::vector<double> x(16);
      if (g.rank() == 2) g.send(ConstBuffer(x.data(), c.sent, c.sent_as), 1);
      if (g.rank() == 1) {
        const auto named = [](DType dtype, std::size_t count) {
          return std::string(to_string(dtype)) + " × " + std::to_string(count);
        };
        expect_error<MismatchError>(
            [&] {
              g.recv(Buffer{x.data(), c.received, c.received_as}, 2);
            },
            {"rank 1 called recv(" + named(c.received_as, c.received),
             "rank 2 called send(" + named(c.sent_as, c.sent)});
      }
      expect_error<MismatchError>([&] { g.barrier(); }, {"rank 2 called send"});
    });
}

TEST(Group, AnswersQuestionsAboutCallsThatNobodyMakes) {
  on_threads(thread_groups(2), [](const Group& g) {
    const CallQuestion large{.count = 1 << 20};
    const CallQuestion small{.count = 1};
    EXPECT_GT(g.expected_seconds(large), g.expected_seconds(small));
    EXPECT_GT(g.expected_seconds(small), 0);
    EXPECT_EQ(g.why_refused(large), "");
    EXPECT_NE(g.why_refused({.count = 1, .options = {.algorithm = "magic"}}).find("magic"),
              std::string::npos);
    EXPECT_NE(g.why_refused({.count = 1, .options = {.op = ReduceOp::bit_and}}).find("integers"),
              std::string::npos);
    EXPECT_NE(
        g.why_refused({.count = 1, .dtype = DType::i32, .options = {.op = ReduceOp::avg, .divisor = 0.5}})
            .find("divisor 0.5"),
        std::string::npos);
    for (const std::string& name : g.algorithms(Collective::all_reduce)) {
      const std::string why = g.why_refused({.count = 4, .options = {.algorithm = name}});
      std::vector<float> x(4, 1);
      if (why.empty())
        g.all_reduce(x, {.algorithm = name});
      else
        expect_error<UsageError>([&] { g.all_reduce(x, {.algorithm = name}); }, {why});
    }
    const CommMemory memory = g.allocate(4096);
    EXPECT_TRUE(g.reaches(memory.data()));
    EXPECT_FALSE(g.reaches(&memory));
    EXPECT_THROW((void)Group().expected_seconds(small), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::testing
