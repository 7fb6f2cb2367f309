// How often the algorithms of star_algorithm.cc have run in this process.
#pragma once

#include <atomic>

namespace lockstep::testing {

extern std::atomic<int> star_runs;

}  // namespace lockstep::testing
