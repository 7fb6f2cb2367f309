// Times the algorithms themselves where ranks share memory, so that calls are chosen and expected by what
// they took on this machine: which lines move between which cores, and what that costs, no formula knew.
#pragma once

#include "comm/call/engine.h"
#include "comm/tune/selector.h"

namespace lockstep {

// Adds what was measured to `table`, the same on every rank: all_reduce from 1 KiB to 64 MiB, the collectives
// of sharded training at three sizes, comm memory and private memory. Half a second for two ranks.
// Collective; leaves out sizes that this machine's memory has no room for.
void run_trials(Engine& engine, Selector& table);

}  // namespace lockstep
