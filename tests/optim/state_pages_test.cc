#include "optim/state_pages.h"

#include <gtest/gtest.h>

#include "optim/layer_kernels.h"

namespace lockstep {
namespace {

constexpr std::size_t kPageBytes = 64 << 10;

// Small and large slices, parts that begin in the middle of a block, some without elements or arrays.
const std::vector<StateShape> kShapes = {
    {{0, 7}, 2, 4},     {{0, 100'000}, 3, 4}, {{300, 90'001}, 2, 2}, {{5, 5}, 2, 4}, {{0, 4000}, 0, 4},
    {{511, 513}, 1, 8}, {{0, 8192}, 2, 4},    {{77, 200'000}, 3, 8}, {{0, 1}, 1, 2}, {{1000, 1512}, 2, 4}};

TEST(StatePages, HasEveryElementOnceAndNoMoreThanAPageHolds) {
  const StatePages layout(kShapes, kPageBytes);
  std::uint64_t at = 0;
  for (std::size_t page = 0; page < layout.pages().size(); ++page) {
    const FilePage& where = layout.pages()[page];
    EXPECT_EQ(where.at, at);
    EXPECT_LE(where.bytes, kPageBytes);
    EXPECT_EQ(where.bytes % ScratchFile::kAlign, 0u);
    at += where.bytes;
    std::size_t used = 0;
    ASSERT_FALSE(layout.in_page(page).empty());
    for (const StatePages::Segment& segment : layout.in_page(page)) {
      const StateShape& shape = kShapes[segment.slice];
      EXPECT_EQ(segment.page, page);
      EXPECT_EQ(segment.at, used);  // none lies on another
      EXPECT_EQ(segment.at % 64, 0u);
      EXPECT_GE(segment.array_stride, segment.count * shape.element_bytes);
      used += segment.array_stride * shape.arrays;
    }
    EXPECT_LE(used, where.bytes);
  }
  EXPECT_EQ(layout.bytes(), at);
  for (std::size_t slice = 0; slice < kShapes.size(); ++slice) {
    std::size_t next = 0;
    for (const StatePages::Segment& segment : layout.of_slice(slice)) {
      EXPECT_EQ(segment.slice, slice);
      EXPECT_EQ(segment.begin, next);
      EXPECT_GT(segment.count, 0u);
      next += segment.count;
    }
    EXPECT_EQ(next, kShapes[slice].arrays == 0 ? 0 : kShapes[slice].elements.count()) << slice;
  }
}

TEST(StatePages, CutsAParameterWhereBlocksEnd) {
  const StatePages layout(kShapes, kPageBytes);
  std::size_t cuts = 0;
  for (std::size_t slice = 0; slice < kShapes.size(); ++slice)
    for (const StatePages::Segment& segment : layout.of_slice(slice)) {
      const std::size_t end = segment.begin + segment.count;
      if (end == kShapes[slice].elements.count()) continue;
      EXPECT_EQ((kShapes[slice].elements.begin + end) % kernel::kBlockElements, 0u) << slice;
      ++cuts;
    }
  EXPECT_GT(cuts, 50u);
}

TEST(StatePages, NeedsNoPageForNothing) {
  EXPECT_TRUE(StatePages({}, kPageBytes).pages().empty());
  EXPECT_TRUE(StatePages({{{3, 3}, 2, 4}, {{0, 9}, 0, 4}}, kPageBytes).pages().empty());
}

}  // namespace
}  // namespace lockstep
