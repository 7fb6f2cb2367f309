// NCCL as an engine: each rank on a GPU of its own, on one machine or several.
//
// Every call opens on the group over which the ranks met, its carrier: there ranks that called different
// things are told, and who is missing or dead is named, before NCCL could hang on it. Then it is put on the
// stream. NCCL's communicator is made by the first call on a GPU, over the carrier, which is authenticated.
//
// Sums in canonical order, which is the default, are ours ("canonical"): slices go to their owners by NCCL's
// messages, one kernel sums them along the tree, and results come back: the same bits as over ipc, and 2 S
// (n - 1) / n bytes sent by each rank, as in a ring. NCCL's own ("native") run where they are named, where
// any order will do, and where nothing is summed.
//
// A thread watches the last call: where NCCL reports an error, a peer died, or the call takes longer than it
// may, it aborts the communicator, so that nothing hangs, and every later call, and who waits for this one,
// throws why.
#pragma once

#include <memory>

#include "comm/call/engine.h"

namespace lockstep {

// The engine over the ranks of `carrier`, which it keeps: nobody else may call anything on it.
std::unique_ptr<Engine> make_nccl_engine(std::shared_ptr<Engine> carrier);

Capabilities nccl_capabilities(Capabilities host);

}  // namespace lockstep
