#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstddef>
#include <vector>

#include "base/large_machine.h"

namespace lockstep {
namespace {

TEST(Cores, OfThisMachine) {
  const CoreMask cores = allowed_cores();
  EXPECT_GE(cores.count(), 1U);
  EXPECT_TRUE(cores.test(static_cast<std::size_t>(::sched_getcpu())));
  EXPECT_TRUE(allow_cores(cores));
  EXPECT_EQ(allowed_cores(), cores);
  EXPECT_FALSE(allow_cores({})) << "a thread that may run nowhere";
  EXPECT_EQ(allowed_cores(), cores);
}

TEST(Cores, OfAMachineThatMayHaveMoreThanACpuSetHolds) {
  test::pretended_cores() = {0, 63, 64, 1500};
  cpu_set_t few;
  EXPECT_NE(::sched_getaffinity(0, sizeof few, &few), 0) << "no such machine is pretended";
  CoreMask cores = allowed_cores();
  EXPECT_EQ(cores.count(), 4U);
  for (const std::size_t core : {0U, 63U, 64U, 1500U}) EXPECT_TRUE(cores.test(core)) << core;
  cores.reset(63);
  EXPECT_TRUE(allow_cores(cores));
  EXPECT_EQ(test::pretended_cores(), (std::vector<int>{0, 64, 1500}));
  test::pretended_cores().clear();
}

}  // namespace
}  // namespace lockstep
