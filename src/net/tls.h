// TLS 1.3 keyed by the job's secret alone: an external pre-shared key with ephemeral Diffie-Hellman
// (psk_dhe_ke, X25519, AES-128-GCM). No certificates, no tickets, no early data, no renegotiation. Either
// side ends the handshake when the other does not know the key.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "net/secret.h"
#include "net/stream.h"

namespace lockstep::net {

constexpr std::size_t kTlsRecord = std::size_t{16} << 10;  // the most that TLS allows

enum class TlsSide { gate, dialler };

// What all connections of one side share. Outlives their handshakes.
class TlsContext {
 public:
  TlsContext(const Secret& secret, TlsSide side);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_.get(); }
  TlsSide side() const { return side_; }
  SSL_SESSION* session(SSL* ssl) const;  // a new one that holds the key

 private:
  Secret key_;
  TlsSide side_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

// One TLS connection over a socket that it owns. A record's body is received straight into OpenSSL's buffer,
// together with the header of the next one; what is sent is gathered, since one large write costs the kernel
// less than a copy costs here.
class TlsConnection {
 public:
  TlsConnection(const TlsContext& context, UniqueFd socket);
  ~TlsConnection();  // says goodbye if that goes without waiting
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  SSL* ssl() const { return ssl_.get(); }
  int fd() const { return socket_.get(); }
  bool flush();  // true when all ciphertext has left. Throws ConnectionLost
  bool unsent() const { return unsent_begin_ < unsent_.size(); }
  std::byte first_byte() const { return first_; }  // that was ever received; 0 before
  bool unread() const { return ahead_begin_ < ahead_end_; }

  // Reads plaintext, as much as there is up to `into`; 0: wait. Throws ConnectionLost.
  std::size_t read(std::span<std::byte> into);
  // Encrypts all of it; the ciphertext is unsent() until flush().
  void write(Bytes bytes);

  // A new key for what is sent after so many records (RFC 8446, 5.5: AES-GCM must not see 2^24.5 under one;
  // OpenSSL does not count).
  void rekey_after(std::uint64_t records) { records_per_key_ = records; }

  // Why the last call of OpenSSL failed: ConnectionLost's reason. Empties OpenSSL's queue of errors.
  std::string failure();

 private:
  friend struct TlsBio;
  void rekey_when_due(std::size_t bytes);

  UniqueFd socket_;
  std::array<std::byte, 4096> ahead_;  // received beyond what OpenSSL asked for
  std::byte first_{};
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
  std::vector<std::byte> unsent_;
  std::size_t unsent_begin_ = 0;
  std::uint64_t records_per_key_ = std::uint64_t{1} << 22;
  std::uint64_t records_ = 0;  // under the present key
  std::string lost_;           // why the socket gave up, once it did
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

// After the handshake. `peer`: for messages.
std::unique_ptr<Stream> tls_stream(std::unique_ptr<TlsConnection> link, std::string peer);

}  // namespace lockstep::net
