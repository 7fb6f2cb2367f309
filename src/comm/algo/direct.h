// The two ways of `direct`: on buffers that peers reach, and through windows for those they can't.
#pragma once

#include "comm/algo/algorithm.h"

namespace lockstep::direct {

// Whether every buffer that peers must touch for this call is in comm memory. The same on every rank.
bool reachable(Stage& stage);

void run_on_comm_memory(Stage& stage);   // direct.cc
void run_through_windows(Stage& stage);  // direct_windows.cc

}  // namespace lockstep::direct
