// The plaintext handshake, as two machines over bytes that know nothing of sockets:
//
//   dialler → gate   magic 8, nonce 32
//   gate → dialler   magic 8, nonce 32, HMAC(key, "server" nonces) 32
//   dialler → gate   HMAC(key, "client" nonces length hello) 32, length 1+1, hello at most kMostHello
//   gate → dialler   HMAC(key, "accept" nonces) 32
//
// Both nonces are fresh and under every code, so nothing recorded can be used again; the labels differ, so
// nothing can be sent back to its author. The dialler tells its hello only to a gate that knows the secret.
// Every length is fixed or bounded before it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "net/secret.h"
#include "net/stream.h"

namespace lockstep::net {

inline constexpr std::size_t kMostHello = 256;  // bytes

inline constexpr std::size_t kMagicBytes = 8;
inline constexpr std::array<char, kMagicBytes> kMagic = {'L', 'O', 'C', 'K', 'S', 'T', 'P', '1'};
using Nonce = std::array<std::byte, 32>;
using Code = std::array<std::byte, 32>;  // HMAC-SHA256
Nonce fresh_nonce();

enum class ProofState { unfinished, proven, refused };

// Why a proof was refused; `none` otherwise.
enum class Refusal { none, not_lockstep, speaks_tls, wrong_secret, long_hello };

class Proof {
 public:
  // How many bytes to receive next; never more are taken, so that what follows stays in the socket.
  std::size_t wants() const { return wanted_ - received_.size(); }
  // Takes at most wants() bytes.
  ProofState take(Bytes bytes);
  // What is to be sent now; given once.
  std::string to_send() { return std::exchange(to_send_, {}); }
  ProofState state() const { return state_; }
  Refusal refusal() const { return refusal_; }

 protected:
  explicit Proof(const Secret& key, const Nonce& nonce) : key_(key), own_(nonce) {}
  ~Proof() = default;

  virtual void step(Bytes message) = 0;  // a whole message of the length that was expected
  void expect(std::size_t bytes) { wanted_ = bytes; }
  void refuse(Refusal why);
  void prove() { state_ = ProofState::proven; }
  void send(Bytes bytes);
  void send(const std::string& bytes) { to_send_ += bytes; }
  Code code(std::string_view label, std::string_view hello) const;

  Secret key_;
  Nonce own_;
  Nonce client_{};
  Nonce server_{};
  ProofState state_ = ProofState::unfinished;

 private:
  Refusal refusal_ = Refusal::none;
  std::size_t wanted_ = 0;
  std::string received_;
  std::string to_send_;
};

// The gate's side.
class GateProof final : public Proof {
 public:
  GateProof(const Secret& key, const Nonce& nonce);
  const std::string& hello() const { return hello_; }  // when proven

 private:
  enum class Expects { greeting, code, hello };
  void step(Bytes message) override;

  Expects expects_ = Expects::greeting;
  Code claimed_{};
  std::string hello_;
};

// The dialler's side; a hello above kMostHello throws UsageError.
class DialProof final : public Proof {
 public:
  DialProof(const Secret& key, const Nonce& nonce, std::string hello);

 private:
  enum class Expects { magic, answer, acceptance };
  void step(Bytes message) override;

  Expects expects_ = Expects::magic;
  std::string hello_;
};

}  // namespace lockstep::net
