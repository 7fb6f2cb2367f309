// The few things that this room does with plain sockets and socket addresses.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"
#include "net/address.h"

namespace lockstep::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::string host() const;  // numeric, with the scope where there is one
  std::uint16_t port() const;
  std::string text() const { return Endpoint{host(), port()}.text(); }
};

enum class Lookup { names, numbers };  // numbers: an address as digits, nobody is asked
// All addresses of `host`. Throws SystemError naming it; NameServiceBusy when it is worth asking again.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, Lookup lookup);
struct NameServiceBusy {
  std::string text;
};

// The two ends of a connected socket; empty text ("?") when it is not connected any more.
SocketAddress local_end(int socket);
SocketAddress remote_end(int socket);

// TCP, non-blocking, not inherited by programs that are executed. Throws SystemError.
UniqueFd make_socket(int family);

// No delay, and keepalive that notices a vanished machine in kSilenceSeconds. Never TCP_USER_TIMEOUT: Linux
// applies it to a peer that is alive and just does not read (a worker that computes) as well.
void tune(int socket);

// Until `events` (poll's) can be had; false when the deadline passed. Errors and hang-ups count as had.
bool wait_ready(int fd, short events, Deadline deadline);

}  // namespace lockstep::net
