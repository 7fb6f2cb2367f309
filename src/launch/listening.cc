#include "launch/listening.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

struct Resolved {
  std::vector<std::string> addresses;  // numeric
  std::string problem;                 // why there are none
};

Resolved resolve(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &wanted, &list); error != 0)
    return {.addresses = {}, .problem = ::gai_strerror(error)};
  Resolved resolved;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      resolved.addresses.emplace_back(text);
  }
  ::freeaddrinfo(list);
  return resolved;
}

// Those of `addresses` that are this machine's own, loopback last.
std::vector<std::string> own(std::vector<std::string> addresses) {
  const std::vector<net::Interface> interfaces = net::interfaces();
  std::erase_if(addresses, [&interfaces](const std::string& address) {
    return !net::is_loopback(address) &&
           std::none_of(interfaces.begin(), interfaces.end(),
                        [&address](const net::Interface& one) { return one.address == address; });
  });
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !net::is_loopback(address); });
  return addresses;
}

// "10.0.0.1 (eth0), 127.0.0.1 (lo)"
std::string own_addresses() {
  std::string text;
  for (const net::Interface& one : net::interfaces())
    text += (text.empty() ? "" : ", ") + one.address + " (" + one.name + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

bool is_here(const net::Endpoint& endpoint) { return !own(resolve(endpoint.host).addresses).empty(); }

std::string listening_address(const net::Endpoint& endpoint) {
  const Resolved resolved = resolve(endpoint.host);
  if (resolved.addresses.empty())
    throw SystemError("--rdzv-endpoint " + endpoint.text() +
                      ": the host's name can't be resolved: " + resolved.problem);
  const std::vector<std::string> here = own(resolved.addresses);
  if (here.empty())
    throw UsageError("--rdzv-endpoint " + endpoint.text() +
                     " is no address of this machine, and the agent of node 0 must run where it is; "
                     "addresses here: " +
                     own_addresses());
  const bool says_loopback = endpoint.host == "localhost" || net::is_loopback(endpoint.host);
  if (net::is_loopback(here.front()) && !says_loopback)
    throw UsageError("--rdzv-endpoint " + endpoint.text() + " means " + here.front() +
                     " on this machine, where no other machine can reach it; give the address by which the "
                     "others reach it; addresses here: " +
                     own_addresses());
  return here.front();
}

}  // namespace lockstep::launcher
