// The listening side of one process, and dialling: every connection proves on both sides that it knows the
// job's secret before anything else is read, then says in a few bytes, its hello, what it is for.
//
//   plaintext  nonces both ways and HMAC-SHA256 over them and the hello: nothing can be replayed
//   tls        TLS 1.3 with the secret as its pre-shared key and ephemeral Diffie-Hellman
//
// Strangers get nothing. The gate's own thread (Asio) gives each connection a few seconds to prove itself,
// keeps a bounded number of unproven ones (the oldest goes when one more comes), reads a bounded number of
// bytes from each, and never answers with more than the fixed handshake.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "net/address.h"
#include "net/proof.h"  // kMostHello
#include "net/secret.h"
#include "net/stream.h"

namespace lockstep::net {

struct GateOptions {
  std::string address;     // numeric; only this one is bound
  std::uint16_t port = 0;  // 0: any free one
  Secret secret;
  Security security = Security::tls;
  std::chrono::milliseconds patience{5000};  // for one handshake
  int most_unproven = 128;                   // connections in their handshake at a time
  // Called on the gate's thread with the address of one that speaks this handshake, but with another secret
  // or without TLS, and what is wrong with it. All others who are turned away are only in the log.
  std::function<void(const std::string& peer, const std::string& why)> on_refused = {};
};

// Somebody listens there already.
class AddressInUse : public SystemError {
 public:
  using SystemError::SystemError;
};

class Gate {
 public:
  // Throws SystemError naming address and port, AddressInUse where they are taken; UsageError for an address
  // that stands for all interfaces.
  explicit Gate(const GateOptions& options);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Endpoint endpoint() const;  // where it listens

  struct Arrival {
    std::unique_ptr<Stream> stream;
    std::string hello;
  };
  // The connection whose hello is exactly `hello`, now or when it comes; null when the deadline passed.
  // Arrivals that nobody asks for wait (a bounded number of them). From any thread, as next().
  std::unique_ptr<Stream> wait_for(const std::string& hello, Deadline deadline);
  // Any; an empty stream when the deadline passed.
  Arrival next(Deadline deadline);
  // A descriptor that is readable while arrivals wait, for event loops.
  int ready_fd() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// Connects, proves itself, and sends `hello`; returns when the other side has accepted it. Tries again while
// nobody listens there yet, or hangs up in the middle (a gate besieged by strangers), until the deadline.
// Throws TimeoutError (nobody listens; names the endpoint), PeerError with rank -1 when the other side has
// another secret, speaks something else or keeps hanging up, SystemError for a name that does not resolve.
// `from`: the local address to bind, empty for the route's choice. `between` is called before every further
// try, several times a second while nobody listens; what it throws ends the dialling.
std::unique_ptr<Stream> dial(const Endpoint& to, const Secret& secret, Security security,
                             const std::string& hello, Deadline deadline, const std::string& from = {},
                             const std::function<void()>& between = {});

}  // namespace lockstep::net
