// Where Gloo listens.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/knobs.h"

namespace lockstep {

// This machine's address for Gloo's connections between ranks on these nodes. Loopback when all are on one
// machine (or LOCKSTEP_NODE_SIZE only pretends that they are not); else the one that routes to the peers, or
// that of the interface that was chosen. Throws UsageError when only loopback is left: other machines could
// not reach it.
std::string gloo_address(const std::vector<int>& nodes, const Knobs& knobs);

}  // namespace lockstep
