// Messages of the engine ipc: the receiver reads where the sender's elements are, and says when it has. They
// are between two ranks and in no order with other calls' rounds: by interprocess events.
#pragma once

#include "comm/call/engine.h"
#include "comm/cuda/ipc_lender.h"
#include "comm/cuda/ipc_peers.h"

namespace lockstep {

struct IpcMessage {
  const Call& call;  // send or recv
  Engine& carrier;
  cuda::IpcLender& lender;
  cuda::IpcPeers& peers;
};

// Puts it on the call's stream.
void put_message(const IpcMessage& message, const char* algorithm);

}  // namespace lockstep
