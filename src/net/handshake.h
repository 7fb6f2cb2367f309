// Proving a connection, without ever blocking: whoever drives it (the gate's thread, dial()) waits for what
// advance() asks for and calls again.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/fd.h"
#include "net/gate.h"
#include "net/stream.h"

namespace lockstep::net {

class TlsContext;

// Thrown when a handshake can't succeed any more.
struct HandshakeFailed {
  enum class Why {
    dropped,         // the other side closed the connection or went; may be well next time
    wrong_secret,    // it does not know the secret, or says that we do not
    other_security,  // one side speaks TLS, the other does not
    not_lockstep     // it speaks something else
  };
  Why why;
  std::string text;  // of the other side: "closed the connection"
};

class Handshake {
 public:
  enum class Wants { read, write, nothing };

  virtual ~Handshake() = default;
  virtual int fd() const = 0;
  virtual Wants advance() = 0;  // `nothing`: proven on both sides. Throws HandshakeFailed
  // When proven. The stream takes the socket over.
  virtual std::string hello() const = 0;
  virtual std::unique_ptr<Stream> stream() = 0;
};

// Each owns the connected socket. `key` is the plaintext handshake's: plain_key(secret).
Secret plain_key(const Secret& secret);
std::unique_ptr<Handshake> plain_gate_handshake(const Secret& key, UniqueFd socket, std::string peer);
std::unique_ptr<Handshake> plain_dial_handshake(const Secret& key, UniqueFd socket, std::string peer,
                                                const std::string& hello);
std::unique_ptr<Handshake> tls_gate_handshake(const TlsContext& context, UniqueFd socket, std::string peer);
std::unique_ptr<Handshake> tls_dial_handshake(const TlsContext& context, UniqueFd socket, std::string peer,
                                              const std::string& hello);

}  // namespace lockstep::net
