#include "net/socket_io.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace lockstep::net {

std::string reason_of(int error_number) {
  switch (error_number) {
    case 0: return "closed the connection";
    case EPIPE: return "closed the connection";
    case ECONNRESET: return "reset the connection";
    case ETIMEDOUT: return "does not answer for " + std::to_string(kSilenceSeconds) + " s";
    default: return "connection failed: " + std::generic_category().message(error_number);
  }
}

std::size_t receive(int socket, std::span<std::byte> into) { return receive(socket, into, {}); }

std::size_t receive(int socket, std::span<std::byte> into, std::span<std::byte> then) {
  if (into.empty()) return 0;
  std::array<iovec, 2> pieces = {iovec{into.data(), into.size()}, iovec{then.data(), then.size()}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = then.empty() ? 1 : 2;
  for (;;) {
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) throw ConnectionLost{reason_of(0)};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    throw ConnectionLost{reason_of(errno)};
  }
}

std::size_t transmit(int socket, Bytes bytes) {
  if (bytes.empty()) return 0;
  for (;;) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    throw ConnectionLost{reason_of(errno)};
  }
}

}  // namespace lockstep::net
