// Gloo over its TCP transport as an engine: the peer that PyTorch uses on CPUs.
//
// Every call opens on the group over which Gloo's ranks met, its carrier (shared memory, or TCP): there ranks
// that called different things are told, and who is missing, dead or gone is named, because Gloo itself says
// none of it, and ends the process where two ranks' lengths differ. Then the data moves over Gloo.
//
// Sums in canonical order, which is the default, are ours ("canonical"): our algorithms over Gloo's messages.
// Gloo's own ("ring", "bcube", "native", see gloo_native.h) run where they are named, by the call or by
// LOCKSTEP_ALGORITHM, where any order will do, and where nothing is summed. Where the variable names another
// one of ours, that runs every call that it can.
#pragma once

#include <memory>

#include "comm/call/engine.h"

namespace lockstep {

// The engine over the ranks of `carrier`, which it keeps: nobody else may call anything on it.
// Between machines it uses the address that routes to MASTER_ADDR, or that of the interface that
// GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME, LOCKSTEP_SOCKET_IFNAME) chooses; on one machine loopback.
// Collective over `carrier`.
std::unique_ptr<Engine> make_gloo_engine(std::shared_ptr<Engine> carrier);

Capabilities gloo_capabilities();

}  // namespace lockstep
