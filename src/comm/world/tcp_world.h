// All ranks of a job over TCP, on one machine or several.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/channel_engine.h"
#include "comm/engine/membership.h"
#include "lockstep/base/knobs.h"
#include "lockstep/comm/group.h"
#include "net/stream.h"

namespace lockstep {

// The flat engine over everybody. Rank 0 listens at the endpoint, or at MASTER_ADDR:MASTER_PORT, until all
// have come. Collective; throws UsageError when the job's secret or endpoint is missing, or when machines
// would talk over loopback; TimeoutError naming who did not come.
std::unique_ptr<ChannelEngine> tcp_world(const Membership& who, const Knobs& knobs);

// The same beside a group that works already, which carries the rendezvous: for comparing engines.
// Collective.
std::unique_ptr<ChannelEngine> tcp_beside(const Group& world, net::Security security);

// Threads of this process as ranks, over 127.0.0.1: element r is rank r's. nodes[r]: the node it pretends to
// be on.
std::vector<std::unique_ptr<ChannelEngine>> tcp_threads(std::vector<int> nodes, net::Security security,
                                                        std::chrono::milliseconds timeout);

}  // namespace lockstep
