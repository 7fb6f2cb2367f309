// An authenticated connection to a peer: bytes in order, both ways, without ever blocking. Made by dial() or
// a Gate; plain or inside TLS 1.3, which looks the same from here. For one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep::net {

enum class Security { plaintext, tls };

// Thrown by a Stream when the connection is over: the peer closed it, reset it, does not answer, or sent what
// is no TLS. The owner knows which rank that was and makes a PeerError of it.
struct ConnectionLost {
  std::string reason;  // "closed the connection", "does not answer for 6 s", …
};

// A machine that vanished is noticed after about so long, provided that the owner calls read() or write() at
// least once a second while it waits: the kernel notices by itself only when no bytes are under way.
inline constexpr int kSilenceSeconds = 6;

using Bytes = std::span<const std::byte>;

class Stream {
 public:
  virtual ~Stream() = default;

  virtual int fd() const = 0;  // to wait on: readable always, writable when a write did not take everything
  // Writes as much of `parts`, one after the other, as goes without waiting; returns how many bytes. When
  // that is not all, wait until fd() is writable and go on with the rest; more may follow it, but the rest
  // itself must not change (TLS may have encrypted it already). Throws ConnectionLost.
  virtual std::size_t write(std::span<const Bytes> parts) = 0;
  // Reads what is there, up to `into`; 0 means wait. Throws ConnectionLost, at the orderly end too.
  virtual std::size_t read(std::span<std::byte> into) = 0;
  // Bytes have been received that read() may return although fd() shows nothing (TLS records). Never after a
  // read() that returned less than it was asked for.
  virtual bool pending() const { return false; }

  virtual const std::string& peer() const = 0;  // "10.0.0.2:41234", for messages
};

// Over a connected socket, which it owns from then on; sets no delay and keepalive. Nobody has proven
// anything: for tests, and for the handshakes.
std::unique_ptr<Stream> plain_stream(int connected_socket, std::string peer);

}  // namespace lockstep::net
