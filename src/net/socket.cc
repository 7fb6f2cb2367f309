#include "net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "lockstep/base/error.h"
#include "net/stream.h"

namespace lockstep::net {

std::string SocketAddress::host() const {
  std::string text(NI_MAXHOST, '\0');
  if (length == 0 || ::getnameinfo(get(), length, text.data(), static_cast<socklen_t>(text.size()), nullptr,
                                   0, NI_NUMERICHOST) != 0)
    return "?";
  text.resize(std::strlen(text.c_str()));
  return text;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, Lookup lookup) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (lookup == Lookup::numbers ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::string what = lookup == Lookup::numbers ? "'" + host + "' is no numeric address"
                                                     : "the host '" + host + "' does not resolve";
  if (error == EAI_AGAIN) throw NameServiceBusy{what + " now: " + ::gai_strerror(error)};
  if (error == EAI_SYSTEM) throw SystemError(what, errno);
  if (error != 0) throw SystemError(what + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress address;
    address.length = static_cast<socklen_t>(std::min<std::size_t>(one->ai_addrlen, sizeof address.storage));
    std::memcpy(&address.storage, one->ai_addr, address.length);
    addresses.push_back(address);
  }
  return addresses;
}

SocketAddress local_end(int socket) {
  SocketAddress end;
  end.length = sizeof end.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&end.storage), &end.length) != 0) return {};
  return end;
}

SocketAddress remote_end(int socket) {
  SocketAddress end;
  end.length = sizeof end.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&end.storage), &end.length) != 0) return {};
  return end;
}

UniqueFd make_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) throw SystemError("can't make a TCP socket", errno);
  return fd;
}

void tune(int socket) {
  const auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof value);  // each is an improvement, none a condition
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  constexpr int kIdle = 2;
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, kSilenceSeconds - kIdle);
}

bool wait_ready(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd one{fd, events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
    const int ready = ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw SystemError("poll", errno);
    if (deadline.passed()) return false;
  }
}

}  // namespace lockstep::net
