// What ranks are called in messages, across wires.
#include "comm/names_cases.h"
#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

class WireNames : public OverWires {};

TEST_P(WireNames, InTimeouts) { expect_world_ranks_in_timeouts(GetParam().make); }
TEST_P(WireNames, OfThoseThatLeave) { expect_world_ranks_of_those_that_leave(GetParam().make); }
TEST_P(WireNames, InDifferences) { expect_world_ranks_in_differences(GetParam().make); }

INSTANTIATE_TEST_SUITE_P(Over, WireNames, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
