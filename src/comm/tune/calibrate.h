// Measures α, β and γ on this machine and keeps them in the user's cache folder.
#pragma once

#include <filesystem>
#include <string>

#include "comm/call/engine.h"
#include "comm/tune/selector.h"

namespace lockstep {

// Gives every rank of the engine's group the same cost table: from the cache, or measured now (a fraction of
// a second, once per machine and number of workers) and kept there. Collective. LOCKSTEP_CACHE_DIR=off leaves
// the built-in costs. A cache that can't be read is measured anew; one that can't be written is only logged.
void load_or_measure_costs(Engine& engine);

// The measurement alone. Collective; rank 0's result counts for all.
Costs measure_costs(Engine& engine);

// Gives rank 0's table to everybody and, unless caching is off, keeps it. Collective.
// True on rank 0 when it was kept.
bool share_costs(Engine& engine, const Selector& table);

// Where the table of such a group on this machine is kept; empty when caching is off.
std::filesystem::path cost_cache_path(int workers);

}  // namespace lockstep
