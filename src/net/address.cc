#include "net/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "net/socket.h"

namespace lockstep::net {
namespace {

[[noreturn]] void refuse_endpoint(std::string_view what, std::string_view text) {
  throw UsageError(std::string(what) + " '" + std::string(text) +
                   "' is no endpoint; accepted: HOST:PORT, for example node0:29500, 10.0.0.1:29500 or "
                   "[fd00::1]:29500, PORT from 1 to 65535");
}

std::uint16_t parse_port(std::string_view what, std::string_view text, std::string_view port) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error != std::errc() || end != port.data() + port.size() || value < 1 || value > 65535)
    refuse_endpoint(what, text);
  return static_cast<std::uint16_t>(value);
}

// Numeric addresses of `host`, in the resolver's order. A busy name service counts as a failed one: callers
// are at their start and say so.
std::vector<std::string> numeric(const std::string& host) {
  std::vector<std::string> all;
  try {
    for (const SocketAddress& address : resolve(host, 0, Lookup::names)) all.push_back(address.host());
  } catch (const NameServiceBusy& busy) {
    throw SystemError(busy.text);
  }
  return all;
}

// The first address of `host` that is this machine's.
std::optional<std::string> local_one(const std::string& host) {
  const auto own = interfaces();
  for (const std::string& address : numeric(host)) {
    // All of 127.0.0.0/8 is this machine, though only 127.0.0.1 is on the interface.
    if (is_loopback(address)) return address;
    for (const Interface& one : own)
      if (one.address == address) return address;
  }
  return std::nullopt;
}

// IPv4 before IPv6, and what can be reached from elsewhere before link-local addresses.
int rank_of(const Interface& one) {
  const bool six = one.address.find(':') != std::string::npos;
  return (six ? 1 : 0) + (one.address.starts_with("fe80:") ? 2 : 0);
}

// The address from which packets to `peer` leave: a connected UDP socket knows it without sending any.
std::string route_to(const Endpoint& peer) {
  int last_error = 0;
  std::vector<SocketAddress> addresses;
  try {
    addresses = resolve(peer.host, peer.port == 0 ? 9 : peer.port, Lookup::names);
  } catch (const NameServiceBusy& busy) {
    throw SystemError(busy.text);
  }
  for (const SocketAddress& address : addresses) {
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd && ::connect(fd.get(), address.get(), address.length) == 0) return local_end(fd.get()).host();
    last_error = errno;
  }
  throw SystemError("no route from this machine to " + peer.text(), last_error);
}

}  // namespace

Endpoint Endpoint::parse(std::string_view what, std::string_view text, std::uint16_t usual_port) {
  Endpoint endpoint;
  endpoint.port = usual_port;
  std::string_view host = text;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) refuse_endpoint(what, text);
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos) refuse_endpoint(what, text);
    if (!rest.empty()) {
      if (rest.front() != ':') refuse_endpoint(what, text);
      endpoint.port = parse_port(what, text, rest.substr(1));
    }
  } else if (const std::size_t colon = text.find(':');
             colon != std::string_view::npos && text.find(':', colon + 1) == std::string_view::npos) {
    host = text.substr(0, colon);
    endpoint.port = parse_port(what, text, text.substr(colon + 1));
  }  // several colons: an IPv6 address without a port
  const auto bad = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '[' || c == ']' || c == '/';
  };
  if (host.empty() || host.size() > 255 || std::any_of(host.begin(), host.end(), bad))
    refuse_endpoint(what, text);
  endpoint.host = host;
  return endpoint;
}

std::string Endpoint::text() const {
  const bool six = host.find(':') != std::string::npos;
  return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) throw SystemError("can't list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(found, &::freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    SocketAddress address;
    if (one->ifa_addr->sa_family == AF_INET)
      address.length = sizeof(sockaddr_in);
    else if (one->ifa_addr->sa_family == AF_INET6)
      address.length = sizeof(sockaddr_in6);
    else
      continue;
    std::memcpy(&address.storage, one->ifa_addr, address.length);
    all.push_back({one->ifa_name, address.host(), (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return all;
}

bool chosen(std::string_view choice, std::string_view name) {
  const bool none_of = choice.starts_with('^');
  if (none_of) choice.remove_prefix(1);
  const bool exactly = choice.starts_with('=');
  if (exactly) choice.remove_prefix(1);
  bool listed = false;
  while (!choice.empty() && !listed) {
    const std::size_t comma = choice.find(',');
    const std::string_view one = choice.substr(0, comma);
    listed = !one.empty() && (exactly ? name == one : name.starts_with(one));
    choice = comma == std::string_view::npos ? std::string_view() : choice.substr(comma + 1);
  }
  return listed != none_of;
}

std::optional<std::string> chosen_address() {
  const char* variable = nullptr;
  std::optional<std::string> choice;
  for (const char* const name : {"LOCKSTEP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"})
    if (!choice && (choice = read_filled_variable(name))) variable = name;
  if (!choice) return std::nullopt;
  const auto all = interfaces();
  const Interface* best = nullptr;
  std::string names;
  for (const Interface& one : all) {
    names += (names.empty() ? "" : ", ") + one.name + " (" + one.address + ")";
    if (!chosen(*choice, one.name)) continue;
    // The list's order decides between interfaces, as the first of equals stays.
    if (best == nullptr || rank_of(one) < rank_of(*best)) best = &one;
  }
  if (best == nullptr)
    throw UsageError(std::string(variable) + "='" + *choice +
                     "' fits no interface that is up; there are: " + (names.empty() ? "none" : names));
  return best->address;
}

std::string own_address(const Endpoint& peer) {
  if (auto chosen = chosen_address()) return std::move(*chosen);
  if (auto local = local_one(peer.host)) return *local;
  return route_to(peer);
}

std::string listen_address(const Endpoint& endpoint) {
  if (auto local = local_one(endpoint.host)) return *local;
  return own_address(endpoint);
}

bool is_loopback(std::string_view address) {
  if (address.starts_with("::ffff:")) address.remove_prefix(7);
  return address == "::1" || (address.starts_with("127.") && address.find(':') == std::string_view::npos);
}

void refuse_loopback(std::string_view address, const Endpoint& endpoint) {
  if (!is_loopback(address)) return;
  throw UsageError(
      "this job runs on several machines, but towards " + endpoint.text() +
      " this machine's own address is " + std::string(address) +
      ", which no other machine can reach; set LOCKSTEP_SOCKET_IFNAME to the interface that leads to "
      "the others, or name an endpoint by an address of that network");
}

}  // namespace lockstep::net
