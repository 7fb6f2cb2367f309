// Where the agent of node 0 listens.
#pragma once

#include <string>

#include "net/address.h"

namespace lockstep::launcher {

// Whether the endpoint's host is this machine. False for a name that does not resolve.
bool is_here(const net::Endpoint& endpoint);

// This machine's address that the endpoint means. Throws UsageError when it means another machine, or, by a
// name that elsewhere means something else, only this machine's loopback (Debian's 127.0.1.1); SystemError
// when the name does not resolve.
std::string listening_address(const net::Endpoint& endpoint);

}  // namespace lockstep::launcher
