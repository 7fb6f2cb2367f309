// What calls cost between a group's workers: as the cost table has it, and as they turn out. A value, so that
// other links can be put in its place.
#pragma once

#include <functional>
#include <span>

#include "lockstep/comm/group.h"

namespace lockstep::compress {

struct SentBucket {
  Work work;              // done
  double expected_s = 0;  // of its calls
};

struct LinkView {
  // Seconds that the call should take; 0: nobody knows.
  std::function<double(const Group& group, const CallQuestion& call)> expected;
  // Seconds in which at least one of a step's exchanges was under way, waiting for ranks that come later and
  // what is computed behind their calls included; 0: nobody knows.
  std::function<double(std::span<const SentBucket> step)> took;
  // Seconds that this process' threads have waited for a core so far. Left empty: nobody knows.
  std::function<double()> waited_for_core = {};
};

// The group's table, and the calls' own clocks.
LinkView real_links();

}  // namespace lockstep::compress
