#include "base/tiles.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep {
namespace {

constexpr unsigned kAmx = (1U << 22) | (1U << 24) | (1U << 25);  // bf16, tiles, int8

TEST(Tiles, AnnouncedAndNotDescribed) {
  // Sapphire Rapids as it is, and behind a hypervisor that ends its leaves before the tiles', or clears them.
  EXPECT_FALSE(are_half_hidden({.highest = 0x20, .features = kAmx, .palettes = 1}));
  EXPECT_TRUE(are_half_hidden({.highest = 0x1c, .features = kAmx, .palettes = 0}));
  EXPECT_TRUE(are_half_hidden({.highest = 0x1c, .features = kAmx, .palettes = 1}));  // of another leaf
  EXPECT_TRUE(are_half_hidden({.highest = 0x20, .features = kAmx, .palettes = 0}));
  // No tiles, nothing to avoid.
  EXPECT_FALSE(are_half_hidden({.highest = 0x1c, .features = ~kAmx, .palettes = 0}));
  EXPECT_FALSE(are_half_hidden({}));
}

TEST(Tiles, WhatTheUserHasSetStays) {
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_FALSE(avoid_half_hidden_tiles());
  EXPECT_STREQ(std::getenv("ONEDNN_MAX_CPU_ISA"), "AVX2");
  ::unsetenv("ONEDNN_MAX_CPU_ISA");
  ::setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_FALSE(avoid_half_hidden_tiles());
  EXPECT_EQ(std::getenv("ONEDNN_MAX_CPU_ISA"), nullptr);
  ::unsetenv("DNNL_MAX_CPU_ISA");
}

}  // namespace
}  // namespace lockstep
