// Gloo's collectives over its TCP transport as an engine: the peer that PyTorch uses on CPUs.
//
// Blocking. all_reduce has Gloo's two algorithms, "ring" (its default) and "bcube"; everything else is
// "native". Gloo adds f16 in f16, rounding at each step; bf16, bit operations and reduce_scatter it does
// not have. min and max of NaN, and the order of sums, are Gloo's.
#pragma once

#include <memory>

#include "comm/engine/engine.h"
#include "lockstep/comm/group.h"

namespace lockstep {

// The engine over the ranks of `world`, whose collectives carry Gloo's rendezvous: no store server, no
// files. Uses the loopback device when all ranks are on one node. Collective over `world`.
std::unique_ptr<Engine> make_gloo_engine(const Group& world);

}  // namespace lockstep
