#include "bench/own_core.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/large_machine.h"

namespace lockstep {
namespace {

using Cores = std::vector<int>;

TEST(OwnCore, OnAMachineThatMayHaveMoreThanACpuSetHolds) {
  const Cores all = {7, 1500};
  test::pretended_cores() = all;
  {
    const OwnCore second(1, 2);
    EXPECT_EQ(test::pretended_cores(), Cores{1500});
  }
  EXPECT_EQ(test::pretended_cores(), all);
  {
    const OwnCore crowded(1, 3);
    EXPECT_EQ(test::pretended_cores(), all);
  }
  EXPECT_EQ(test::pretended_cores(), all);
  test::pretended_cores().clear();
}

}  // namespace
}  // namespace lockstep
