// The checker of the benchmark: it knows right results, and it notices wrong ones.
#include "bench/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

namespace lockstep {
namespace {

// Plain f32 inputs of every rank.
std::vector<std::vector<float>> inputs(const Expectation& e) {
  std::vector<std::vector<float>> all;
  for (int r = 0; r < e.workers; ++r) {
    std::vector<float> x(e.extent.total);
    fill_pattern(x.data(), x.size(), DType::f32, e.op, r);
    all.push_back(x);
  }
  return all;
}

Expectation expect(BenchOp what, int rank, int workers, std::uint64_t bytes) {
  return {.what = what,
          .rank = rank,
          .workers = workers,
          .root = 0,
          .dtype = DType::f32,
          .op = ReduceOp::sum,
          .extent = extent_of(what, workers, bytes, DType::f32)};
}

// What rank e.rank must hold afterwards, by the definition of each collective.
std::vector<float> result_of(const Expectation& e) {
  const auto all = inputs(e);
  const std::size_t slice = e.extent.slice, own = static_cast<std::size_t>(e.rank) * slice;
  std::vector<float> out(output_count(e));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t from = i / slice, j = i % slice;
    switch (e.what) {
      case BenchOp::all_reduce:
      case BenchOp::reduce:
        for (const auto& x : all) out[i] += x[i];
        break;
      case BenchOp::reduce_scatter:
        for (const auto& x : all) out[i] += x[own + i];
        break;
      case BenchOp::all_gather:
      case BenchOp::gather: out[i] = all[from][j]; break;
      case BenchOp::broadcast: out[i] = all[0][i]; break;
      case BenchOp::scatter: out[i] = all[0][own + i]; break;
      case BenchOp::all_to_all: out[i] = all[from][own + j]; break;
      case BenchOp::send_recv:
        out[i] = all[static_cast<std::size_t>((e.rank + e.workers - 1) % e.workers)][i];
        break;
      case BenchOp::barrier: break;
    }
  }
  return out;
}

class Checker : public testing::TestWithParam<std::tuple<BenchOp, int>> {};

TEST_P(Checker, AcceptsTheRightResultAndFindsEveryWrongElement) {
  const auto [what, workers] = GetParam();
  for (int rank = 0; rank < workers; ++rank) {
    const Expectation e = expect(what, rank, workers, 4 * 3 * 1000);
    std::vector<float> out = result_of(e);
    EXPECT_EQ(find_mistake(out.data(), e), std::nullopt);
    for (const std::size_t at : {std::size_t{0}, out.size() / 2, out.size() - 1}) {
      if (out.empty()) continue;
      out[at] += 1;
      const auto wrong = find_mistake(out.data(), e);
      ASSERT_TRUE(wrong);
      EXPECT_NE(wrong->find("element " + std::to_string(at) + " is"), std::string::npos) << *wrong;
      out[at] -= 1;
    }
  }
}

// Where ranks hold different things, one rank's result must not pass for another's.
class CheckerOfRanks : public testing::TestWithParam<BenchOp> {};

TEST_P(CheckerOfRanks, FindsResultsOfAnotherRank) {
  const Expectation mine = expect(GetParam(), 0, 3, 4 * 3 * 1000),
                    theirs = expect(GetParam(), 1, 3, 4 * 3 * 1000);
  EXPECT_FALSE(find_mistake(result_of(mine).data(), mine));
  EXPECT_TRUE(find_mistake(result_of(theirs).data(), mine));
}

INSTANTIATE_TEST_SUITE_P(All, CheckerOfRanks,
                         testing::Values(BenchOp::reduce_scatter, BenchOp::scatter, BenchOp::all_to_all,
                                         BenchOp::send_recv));

INSTANTIATE_TEST_SUITE_P(All, Checker,
                         testing::Combine(testing::Values(BenchOp::all_reduce, BenchOp::reduce_scatter,
                                                          BenchOp::all_gather, BenchOp::broadcast,
                                                          BenchOp::reduce, BenchOp::gather, BenchOp::scatter,
                                                          BenchOp::all_to_all, BenchOp::send_recv),
                                          testing::Values(1, 2, 3)),
                         [](const auto& test) {
                           return std::string(to_string(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(CheckerInput, SliceOfAShiftedBufferIsNotTheBuffer) {
  std::vector<float> x(600), y(600);
  fill_pattern(x.data(), x.size(), DType::f32, ReduceOp::sum, 1, 0);
  fill_pattern(y.data(), y.size(), DType::f32, ReduceOp::sum, 1, 256);
  EXPECT_NE(x, y);
  fill_pattern(y.data(), y.size(), DType::f32, ReduceOp::sum, 2, 0);
  EXPECT_NE(x, y);
}

TEST(CheckerInput, AverageOfIntegersTruncates) {
  Expectation e = expect(BenchOp::all_reduce, 0, 2, 40);
  e.dtype = DType::i32;
  e.op = ReduceOp::avg;
  std::vector<std::int32_t> out(10);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = (pattern_value(0, i, e.op) + pattern_value(1, i, e.op)) / 2;
  EXPECT_EQ(find_mistake(out.data(), e), std::nullopt);
  out[9] += 1;
  EXPECT_TRUE(find_mistake(out.data(), e));
}

TEST(BenchOps, CountBytesAsNcclTestsDoes) {
  EXPECT_EQ(extent_of(BenchOp::all_reduce, 3, 4096, DType::f32).total, 1024U);
  EXPECT_EQ(extent_of(BenchOp::all_gather, 3, 4096, DType::f32).slice, 341U);  // 1024 / 3
  EXPECT_EQ(extent_of(BenchOp::all_gather, 3, 4096, DType::f32).total, 1023U);
  EXPECT_EQ(extent_of(BenchOp::barrier, 3, 4096, DType::f32).total, 0U);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOp::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOp::all_to_all, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOp::broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bytes_that_must_move(BenchOp::all_reduce, 2, 100), 400);
}

}  // namespace
}  // namespace lockstep
