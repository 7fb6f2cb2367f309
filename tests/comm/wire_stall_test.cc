// A rank that waits for long across a wire says so.
#include <cstdlib>

#include "comm/stall_cases.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

class WireStall : public OverWires {};

// Longer than it takes the ranks to hear of each other's waits.
TEST_P(WireStall, NamesTheLateRankAndTheCall) {
  const Variable soon("LOCKSTEP_WARN_AFTER_S", "1.2");
  const std::vector<std::string> lines = lines_of_a_late_rank(GetParam().make, 3, 1);
  expect_blame(lines, "rank 3");
  // One a node that misses a rank of its own, and one across.
  EXPECT_LE(lines.size(), GetParam().nodes ? 2U : 1U);
}

INSTANTIATE_TEST_SUITE_P(Over, WireStall, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
