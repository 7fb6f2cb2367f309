// Asynchronous calls and divisors across wires.
#include <algorithm>

#include "comm/patience.h"
#include "comm/wire_cases.h"
#include "comm/world/group_impl.h"

namespace lockstep::testing {
namespace {

class WireWork : public OverWires {};

TEST_P(WireWork, CallsRunInTheOrderInWhichTheyWereMade) {
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    Floats x(2000, static_cast<float>(g.rank() + 1));
    float expected = 10;
    for (int round = 0; round < 20; ++round) {
      const Work first = g.all_reduce_async(buffer(x));
      const Work second = g.all_reduce_async(buffer(x), {.op = ReduceOp::avg});
      if (round % 3 == 0) g.barrier();
      const Work third = g.broadcast_async(buffer(x), round % 4);
      g.all_reduce(buffer(x), {.op = ReduceOp::max});  // waits for the three
      EXPECT_TRUE(first.done() && second.done() && third.done());
      ASSERT_EQ(x, Floats(2000, expected));
      for (float& value : x) value = static_cast<float>(g.rank() + 1 + round);
      expected = static_cast<float>(10 + 4 * round);
    }
  });
}

TEST_P(WireWork, HundredsMayBeUnderWay) {
  constexpr int kMany = 200;
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    std::vector<Floats> xs;
    std::vector<Work> works;
    for (int i = 0; i < kMany; ++i)
      xs.emplace_back(static_cast<std::size_t>(1 + i * 13), static_cast<float>(i + g.rank()));
    for (int i = 0; i < kMany; ++i)
      works.push_back(
          g.all_reduce_async(buffer(xs[static_cast<std::size_t>(i)]), {.algorithm = i % 3 == 0   ? "ring"
                                                                                    : i % 3 == 1 ? "tree"
                                                                                                 : ""}));
    for (int i = kMany; i-- > 0;) {
      works[static_cast<std::size_t>(i)].wait();
      EXPECT_EQ(xs[static_cast<std::size_t>(i)].back(), static_cast<float>(4 * i + 6));
    }
  });
}

void wait_for_copies_without_rank_one(const Wire& wire, milliseconds patience, Seen& seen) {
  on_threads(wire.make(kPatient), [&](const Group& g) {
    g.barrier();  // or a thread that begins late would be missing too
    if (g.rank() == 1) return;
    Floats x(100);
    const Work work = g.all_reduce_async(buffer(x), {.timeout = patience});
    const Work queued = g.barrier_async();
    const Work copy = work;
    std::string line;
    try {
      work.wait();
      ADD_FAILURE() << "rank 1 is not there";
    } catch (const TimeoutError& error) {
      line = note_missing(seen, error);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(expect_error<TimeoutError>([&] { work.wait(); }), line);
      EXPECT_EQ(expect_error<TimeoutError>([&] { (void)copy.wait_for(milliseconds(1)); }), line);
      EXPECT_EQ(expect_error<TimeoutError>([&] { queued.wait(); }), line);
    }
  });
}

TEST_P(WireWork, EveryCopyRethrowsEveryTime) {
  expect_seen("1", 3, milliseconds(200), [](milliseconds patience, Seen& seen) {
    wait_for_copies_without_rank_one(GetParam(), patience, seen);
  });
}

TEST_P(WireWork, DroppingTheHandleDoesNotCancelAndTheGroupWaitsForIt) {
  std::vector<Floats> xs(4, Floats(50'000, 1));
  with_own_groups(GetParam().make(kPatient), [&](Group g) {
    Floats& x = xs[static_cast<std::size_t>(g.rank())];
    for (int i = 0; i < 5; ++i) (void)g.all_reduce_async(buffer(x));
  });
  for (const Floats& x : xs) EXPECT_EQ(x, Floats(50'000, 1024));
}

class WireDivisor : public OverWires {};

// Idle ranks leave the divisor to the one that knows it, whoever that is.
TEST_P(WireDivisor, MayBeLeftToTheOthersInEveryAlgorithm) {
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    std::vector<std::string> algorithms = g.algorithms(Collective::all_reduce);
    EXPECT_GE(algorithms.size(), 5U);
    algorithms.emplace_back();
    for (const std::string& algorithm : algorithms)
      for (const std::size_t count :
           {std::size_t{1}, std::size_t{3}, std::size_t{1000}, std::size_t{100'000}})
        for (int knows = 0; knows < g.size(); ++knows) {
          std::vector<double> x(count, g.rank() == knows ? 8.0 : -0.0);
          g.all_reduce(buffer(x), {.op = ReduceOp::avg,
                                   .algorithm = algorithm,
                                   .divisor = g.rank() == knows ? 4 : kDivisorOfOthers});
          ASSERT_EQ(std::count(x.begin(), x.end(), 2.0), static_cast<std::ptrdiff_t>(count))
              << algorithm << ", rank " << knows << " knows";
        }
    // Who says nothing about it knows it too: it is the number of ranks.
    std::vector<double> mean(3, 7.0);
    g.all_reduce(buffer(mean), {.op = ReduceOp::avg, .divisor = g.rank() == 1 ? 0 : kDivisorOfOthers});
    EXPECT_EQ(mean[0], 7.0);
    std::vector<double> y(3, 7.0);
    g.all_reduce(buffer(y), {.op = ReduceOp::avg, .divisor = kDivisorOfOthers});
    EXPECT_EQ(y[0], 28.0);
    std::vector<std::byte> half(2000 * size_of(DType::bf16));  // zeros
    g.all_reduce(Buffer{half.data(), 2000, DType::bf16},
                 {.op = ReduceOp::avg, .divisor = g.rank() == 1 ? 3 : kDivisorOfOthers});
    for (const std::string& algorithm : g.algorithms(Collective::reduce_scatter)) {
      std::vector<double> in(4000, g.rank() == 2 ? 9.0 : 0.0);
      std::vector<double> out(1000);
      g.reduce_scatter(
          buffer(in), buffer(out),
          {.op = ReduceOp::avg, .algorithm = algorithm, .divisor = g.rank() == 2 ? 3 : kDivisorOfOthers});
      ASSERT_EQ(std::count(out.begin(), out.end(), 3.0), 1000) << algorithm;
    }
    for (const std::string& algorithm : g.algorithms(Collective::reduce)) {
      std::vector<double> in(1000, g.rank() == 2 ? 9.0 : 0.0);
      std::vector<double> out(1000);
      g.reduce(
          buffer(in), buffer(out), 1,
          {.op = ReduceOp::avg, .algorithm = algorithm, .divisor = g.rank() == 2 ? 3 : kDivisorOfOthers});
      if (g.rank() == 1) {
        ASSERT_EQ(std::count(out.begin(), out.end(), 3.0), 1000) << algorithm;
      }
    }
  });
}

TEST_P(WireDivisor, ADifferenceIsAMismatch) {
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    std::vector<float> x(10, 1);
    const double divisors[] = {kDivisorOfOthers, 20, 30, kDivisorOfOthers};
    expect_error<MismatchError>(
        [&] {
          g.all_reduce(buffer(x), {.op = ReduceOp::avg, .divisor = divisors[g.rank()]});
          g.barrier();
        },
        {"over 20", "over 30"});
  });
}

INSTANTIATE_TEST_SUITE_P(Over, WireWork, ::testing::ValuesIn(wires()), wire_name);
INSTANTIATE_TEST_SUITE_P(Over, WireDivisor, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
