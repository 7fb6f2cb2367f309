// Where a machine can be reached: endpoints as people write them, and which of the machine's own addresses to
// use. Nothing ever listens on all interfaces: one address, the one that routes to the peers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::net {

struct Endpoint {
  std::string host;  // a name or an address
  std::uint16_t port = 0;

  // "host:port", "10.0.0.1:29500", "[fe80::1]:29500". Throws UsageError that names `what` (a flag or
  // variable).
  static Endpoint parse(std::string_view what, std::string_view text, std::uint16_t usual_port);
  std::string text() const;  // as parse reads it
  bool operator==(const Endpoint&) const = default;
};

// One address of an interface that is up.
struct Interface {
  std::string name;     // eth0
  std::string address;  // numeric
  bool loopback = false;
};
std::vector<Interface> interfaces();

// A choice of interfaces as NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME write it: "eth,ib" (names that begin
// so),
// "=eth0,eth1" (exactly these), "^docker,lo" (none that begins so), "^=eth3" (all but exactly these).
bool chosen(std::string_view choice, std::string_view name);

// The first address of an interface that LOCKSTEP_SOCKET_IFNAME, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME (in
// this order) chooses; none when none of them is set. Throws UsageError when the choice fits no interface,
// naming those there are.
std::optional<std::string> chosen_address();

// This machine's address to listen on: chosen_address(), or the one from which packets to `peer` leave. When
// `peer` is this machine itself, the address that `peer` resolves to. Throws as chosen_address() does, and
// SystemError when the name does not resolve or there is no route.
std::string own_address(const Endpoint& peer);

// Where to listen when others will dial `endpoint`: the address it resolves to when that is this machine's,
// otherwise (a name that leads here through something else) own_address.
std::string listen_address(const Endpoint& endpoint);

bool is_loopback(std::string_view address);  // 127.0.0.0/8 or ::1
// For a job on several machines: throws UsageError, saying what to set, when `address`, which own_address
// gave for `endpoint`, is a loopback address.
void refuse_loopback(std::string_view address, const Endpoint& endpoint);

}  // namespace lockstep::net
