#include "grad/bucket_layout.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep {
namespace {

std::vector<int> reversed(std::size_t n) {
  std::vector<int> order(n);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

TEST(BucketLayout, TakesTheGivenOrderAndKeepsTheCaps) {
  const std::vector<ParameterShape> shapes(10, {.count = 1000, .dtype = DType::f32});  // 4 000 bytes each
  const BucketLayout layout = plan_buckets(shapes, reversed(10), 4096, 13000);
  ASSERT_EQ(layout.buckets.size(), 4u);
  EXPECT_EQ(layout.buckets[0].members, std::vector<int>({9}));
  EXPECT_EQ(layout.buckets[1].members, std::vector<int>({8, 7, 6}));
  EXPECT_EQ(layout.buckets[3].members, std::vector<int>({2, 1, 0}));
  for (std::size_t b = 1; b < layout.buckets.size(); ++b) EXPECT_LE(layout.buckets[b].count * 4, 13000u);
}

TEST(BucketLayout, EveryParameterHasItsOwnAlignedPlace) {
  const std::vector<ParameterShape> shapes = {{1, DType::f32},   {17, DType::f64},     {0, DType::f32},
                                              {33, DType::bf16}, {100000, DType::f32}, {5, DType::f64}};
  const BucketLayout layout = plan_buckets(shapes, reversed(shapes.size()), 64, 1000);
  std::size_t members = 0;
  for (const BucketPlan& plan : layout.buckets) {
    std::size_t end = 0;
    for (const int m : plan.members) {
      const auto i = static_cast<std::size_t>(m);
      EXPECT_EQ(shapes[i].dtype, plan.dtype);
      EXPECT_GE(layout.placements[i].offset, end);
      EXPECT_EQ(layout.placements[i].offset * size_of(plan.dtype) % kTensorAlignment, 0u);
      end = layout.placements[i].offset + shapes[i].count;
      ++members;
    }
    EXPECT_LE(end, plan.count);
  }
  EXPECT_EQ(members, shapes.size());
}

TEST(BucketLayout, BucketsAreInTheOrderInWhichTheyFill) {
  // f64 comes first and last, f32 in between: the f32 bucket is full before the f64 one.
  const std::vector<ParameterShape> shapes = {
      {8, DType::f64}, {8, DType::f32}, {8, DType::f32}, {8, DType::f64}};
  const BucketLayout layout = plan_buckets(shapes, std::vector<int>{0, 1, 2, 3}, 1 << 20, 1 << 20);
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].dtype, DType::f32);
  EXPECT_EQ(layout.buckets[1].dtype, DType::f64);
}

// Whatever the ranks, buckets come apart into equal parts, and grow by hardly anything for it.
TEST(BucketLayout, CanBeCutEvenlyAmongAnyRanks) {
  const std::vector<ParameterShape> shapes = {{3, DType::f32},      {17, DType::f64}, {1000, DType::bf16},
                                              {100000, DType::f32}, {5, DType::f64},  {2000000, DType::f16}};
  const BucketLayout one = plan_buckets(shapes, reversed(shapes.size()), 64, 1000);
  for (const int ranks : {1, 2, 3, 4, 7, 8, 13, 300, 1024}) {
    const BucketLayout layout = plan_buckets(shapes, reversed(shapes.size()), 64, 1000, ranks);
    ASSERT_EQ(layout.buckets.size(), one.buckets.size());
    for (std::size_t b = 0; b < one.buckets.size(); ++b) {
      const std::size_t before = one.buckets[b].count;
      const std::size_t count = layout.buckets[b].count;
      EXPECT_EQ(count % static_cast<std::size_t>(ranks), 0u) << ranks;
      EXPECT_GE(count, before);
      EXPECT_LT(count - before, std::max(static_cast<std::size_t>(ranks), before / 64 + 1)) << ranks;
      EXPECT_EQ(layout.buckets[b].members, one.buckets[b].members);
    }
    for (std::size_t i = 0; i < shapes.size(); ++i)
      EXPECT_EQ(layout.placements[i].offset, one.placements[i].offset);
  }
  // Large ones on whole lines: no two ranks write to one.
  const std::vector<ParameterShape> large = {{1000000, DType::f32}};
  EXPECT_EQ(plan_buckets(large, reversed(1), 64, 1000, 3).buckets[0].count % (3 * 16), 0u);
}

TEST(BucketLayout, NothingGivesNoBucket) { EXPECT_TRUE(plan_buckets({}, {}, 1, 1).buckets.empty()); }

}  // namespace
}  // namespace lockstep
