#include "comm/engine/gloo_address.h"

#include <algorithm>

#include "base/environment.h"
#include "lockstep/base/error.h"
#include "net/address.h"

namespace lockstep {
namespace {

// Without an endpoint to route to (mpirun sets none): the first address that others can reach.
std::string first_reachable() {
  if (auto chosen = net::chosen_address()) return std::move(*chosen);
  for (const net::Interface& one : net::interfaces())
    if (!one.loopback) return one.address;
  return "127.0.0.1";
}

}  // namespace

std::string gloo_address(const std::vector<int>& nodes, const Knobs& knobs) {
  const bool one_machine = std::ranges::all_of(nodes, [&](int n) { return n == nodes[0]; });
  if (one_machine || knobs.node_size > 0) return "127.0.0.1";
  const auto lead = read_filled_variable("MASTER_ADDR");
  const std::string address = lead ? net::own_address({.host = *lead, .port = 0}) : first_reachable();
  if (net::is_loopback(address))
    throw UsageError("gloo: the workers are on several machines, but this one's address is " + address +
                     "; set MASTER_ADDR to an address of rank 0's machine that the others reach, or "
                     "GLOO_SOCKET_IFNAME to an interface");
  return address;
}

}  // namespace lockstep
