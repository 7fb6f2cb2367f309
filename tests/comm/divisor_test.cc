// avg divides by what the caller says, and Work tells when it ran.
#include <gtest/gtest.h>

#include <atomic>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::on_threads;

TEST(Divisor, DividesByTheCallersNumberInEveryAlgorithm) {
  for (const int n : {1, 2, 3, 4})
    for (const char* algorithm : {"", "eager", "direct", "tree", "halving-doubling", "pairwise", "ring"})
      on_threads(thread_groups(n), [&](const Group& group) {
        std::vector<float> x(1000, static_cast<float>(group.rank() + 1));
        group.all_reduce(buffer(x), {.op = ReduceOp::avg, .algorithm = algorithm, .divisor = 5});
        const auto expected = static_cast<float>(n * (n + 1) / 2) / 5.0f;
        for (const float v : x) ASSERT_EQ(v, expected) << algorithm << ", " << n << " ranks";
      });
}

TEST(Divisor, MayBeLeftToTheOthers) {
  on_threads(thread_groups(3), [&](const Group& group) {
    std::vector<double> x(100000, group.rank() == 2 ? 8.0 : -0.0);
    group.all_reduce(buffer(x), {.op = ReduceOp::avg, .divisor = group.rank() == 2 ? 4 : kDivisorOfOthers});
    EXPECT_EQ(x.front(), 2.0);
    EXPECT_EQ(x.back(), 2.0);
    std::vector<double> mean(3, 7.0);
    group.all_reduce(buffer(mean),
                     {.op = ReduceOp::avg, .divisor = group.rank() == 1 ? 0 : kDivisorOfOthers});
    EXPECT_EQ(mean[0], 7.0);
    std::vector<double> y(3, 7.0);
    group.all_reduce(buffer(y), {.op = ReduceOp::avg, .divisor = kDivisorOfOthers});
    EXPECT_EQ(y[0], 21.0);
  });
}

TEST(Divisor, ADifferenceIsAMismatch) {
  std::atomic<int> found = 0;
  on_threads(thread_groups(3), [&](const Group& group) {
    std::vector<float> x(10, 1);
    const double divisors[] = {kDivisorOfOthers, 2, 3};
    expect_error<MismatchError>(
        [&] { group.all_reduce(buffer(x), {.op = ReduceOp::avg, .divisor = divisors[group.rank()]}); },
        {"over 2", "over 3"});
    ++found;
  });
  EXPECT_EQ(found, 3);
}

TEST(Divisor, RefusesWhatCannotDivide) {
  const Group group = thread_groups(1)[0];
  std::vector<std::int32_t> whole(4, 6);
  expect_error<UsageError>([&] { group.all_reduce(buffer(whole), {.op = ReduceOp::avg, .divisor = 1.5}); },
                           {"1.5", "whole"});
  std::vector<float> x(4, 6);
  for (const double bad : {-2.0, 1.0 / 0.0})
    expect_error<UsageError>([&] { group.all_reduce(buffer(x), {.op = ReduceOp::avg, .divisor = bad}); });
  group.all_reduce(buffer(whole), {.op = ReduceOp::avg, .divisor = 4});
  EXPECT_EQ(whole[0], 1);
}

TEST(WorkTiming, TellsWhenAndHow) {
  on_threads(thread_groups(2), [&](const Group& group) {
    std::vector<float> x(100000, 1);
    const Work work = group.all_reduce_async(buffer(x), {.algorithm = "tree"});
    work.wait();
    const WorkTiming timing = work.timing();
    EXPECT_GT(timing.begin_ns, 0);
    EXPECT_LE(timing.begin_ns, timing.running_ns);
    EXPECT_LE(timing.running_ns, timing.end_ns);
    EXPECT_EQ(timing.algorithm, "tree");
    EXPECT_EQ(Work().timing().end_ns, 0);
  });
}

}  // namespace
}  // namespace lockstep
