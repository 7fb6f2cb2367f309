// Gloo's collectives over its TCP transport as an engine: the peer that PyTorch uses on CPUs.
//
// Blocking. all_reduce has Gloo's two algorithms, "ring" (its default) and "bcube"; everything else is
// "native". Gloo adds f16 in f16, rounding at each step; bf16, bit operations and reduce_scatter it does
// not have: refuses() says so. min and max of NaN, and the order of sums, are Gloo's. Ranks that call
// different things are not told apart; a call's timeout is kept, and ends the group. Gloo says neither which
// rank was late (TimeoutError without names) nor which one went (PeerError of rank -1), except when there are
// but two.
#pragma once

#include <memory>

#include "comm/engine/engine.h"
#include "lockstep/comm/group.h"

namespace lockstep {

// The engine over the ranks of `world`, whose collectives carry Gloo's rendezvous: no store server, no
// files. Between machines it uses the address that routes to MASTER_ADDR, or that of the interface that
// GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME, LOCKSTEP_SOCKET_IFNAME) chooses; on one machine loopback.
// Collective over `world`, which is needed only until this returns.
std::unique_ptr<Engine> make_gloo_engine(const Group& world);

}  // namespace lockstep
