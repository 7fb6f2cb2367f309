// How fast memory could be: the floor under every collective.
#pragma once

#include <cstdint>

#include "lockstep/comm/group.h"

namespace lockstep {

// Bytes a second that all workers together read and write when each runs a SIMD read-modify-write loop
// over `bytes_per_worker` of its own memory, all at once: the fastest of several passes. Sizes that fit
// a cache are measured in that cache. Collective; the same figure on every rank.
double memory_bandwidth(const Group& world, std::uint64_t bytes_per_worker);

}  // namespace lockstep
