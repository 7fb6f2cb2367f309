// CUDA IPC: ranks of one machine map each other's buffers on GPUs, and one kernel a call works on all of
// them. Several ranks may share one GPU, and be threads of one process.
//
// The way of a call on a GPU, n ranks:
//   1. Each rank's stream says, behind what it holds, that its buffers are ready (ipc_signals.h). The rank
//      posts over the carrier where they are. There all meet, as for any call: who called something else, has
//      its buffers elsewhere, is missing or dead, is named.
//   2. Each lets its stream wait until everybody's are ready, puts its part of the work there (of a sum the
//      n-th part of everybody's buffers, in canonical order, written to all), and has it say when it is done.
//   3. They meet again, and each lets its stream wait until everybody is done.
// The host waits for the other hosts, and for no stream. No kernel waits for another: without MPS, processes
// take turns on a GPU. Where a rank died nobody's stream waits for it any more.
//
// Bytes, all_reduce of S on one GPU: n·S read and n·S written, by all ranks together.
//
// What is not memory of allocate() goes through a block of the engine's (kStagingBytes), in rounds where it
// is larger. Calls on host memory go to the carrier, whose ranks they are.
#pragma once

#include <memory>

#include "comm/call/engine.h"

namespace lockstep {

// The engine over the ranks of `carrier`, all on one machine, which it keeps: nobody else may call anything
// on it. Throws UsageError for ranks on several machines, or more than a kernel takes.
std::unique_ptr<Engine> make_ipc_engine(std::shared_ptr<Engine> carrier);

// What it can do beside what its carrier can on host memory.
Capabilities ipc_capabilities(Capabilities host);

}  // namespace lockstep
