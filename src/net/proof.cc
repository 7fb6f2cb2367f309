#include "net/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::net {
namespace {

constexpr std::size_t kCodeAndLength = sizeof(Code) + 2;

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

bool same_code(Bytes a, const Code& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), b.size()) == 0;
}

bool is_magic(Bytes bytes) { return std::memcmp(bytes.data(), kMagic.data(), kMagicBytes) == 0; }

// A TLS record begins with its type, handshake (22) or alert (21), and a major version of 3.
bool is_tls(Bytes bytes) {
  return (bytes[0] == std::byte{22} || bytes[0] == std::byte{21}) && bytes[1] == std::byte{3};
}

std::string hello_length(std::string_view hello) {
  return {static_cast<char>(hello.size() >> 8), static_cast<char>(hello.size() & 255)};
}

}  // namespace

Nonce fresh_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) != 1)
    throw SystemError("the system gave no random numbers for a handshake");
  return nonce;
}

ProofState Proof::take(Bytes bytes) {
  if (state_ != ProofState::unfinished) return state_;
  received_.append(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), wants()));
  // A step may expect nothing more (a hello of no bytes), hence the loop.
  while (state_ == ProofState::unfinished && received_.size() == wanted_) {
    const std::string message = std::exchange(received_, {});
    step(bytes_of(message));
  }
  return state_;
}

void Proof::refuse(Refusal why) {
  state_ = ProofState::refused;
  refusal_ = why;
}

void Proof::send(Bytes bytes) { to_send_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

Code Proof::code(std::string_view label, std::string_view hello) const {
  std::string message(label);
  message.append(reinterpret_cast<const char*>(client_.data()), client_.size());
  message.append(reinterpret_cast<const char*>(server_.data()), server_.size());
  message += hello_length(hello);
  message += hello;
  Code result;
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key_.bytes().data(), static_cast<int>(key_.bytes().size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(result.data()), &length) == nullptr ||
      length != result.size())
    throw SystemError("OpenSSL could not compute HMAC-SHA256");
  return result;
}

GateProof::GateProof(const Secret& key, const Nonce& nonce) : Proof(key, nonce) {
  server_ = own_;
  expect(kMagicBytes + sizeof(Nonce));
}

void GateProof::step(Bytes message) {
  switch (expects_) {
    case Expects::greeting:
      if (!is_magic(message)) return refuse(is_tls(message) ? Refusal::speaks_tls : Refusal::not_lockstep);
      std::copy_n(message.begin() + kMagicBytes, client_.size(), client_.begin());
      send(std::as_bytes(std::span(kMagic)));
      send(server_);
      send(code("server", {}));
      expects_ = Expects::code;
      return expect(kCodeAndLength);
    case Expects::code: {
      std::copy_n(message.begin(), claimed_.size(), claimed_.begin());
      const std::size_t length = std::to_integer<std::size_t>(message[sizeof(Code)]) << 8 |
                                 std::to_integer<std::size_t>(message[sizeof(Code) + 1]);
      if (length > kMostHello) return refuse(Refusal::long_hello);
      expects_ = Expects::hello;
      return expect(length);
    }
    case Expects::hello:
      hello_.assign(reinterpret_cast<const char*>(message.data()), message.size());
      if (!same_code(claimed_, code("client", hello_))) {
        hello_.clear();
        return refuse(Refusal::wrong_secret);
      }
      send(code("accept", {}));
      return prove();
  }
}

DialProof::DialProof(const Secret& key, const Nonce& nonce, std::string hello)
    : Proof(key, nonce), hello_(std::move(hello)) {
  if (hello_.size() > kMostHello)
    throw UsageError("a hello of " + std::to_string(hello_.size()) + " bytes; accepted: at most " +
                     std::to_string(kMostHello));
  client_ = own_;
  send(std::as_bytes(std::span(kMagic)));
  send(client_);
  expect(kMagicBytes - 1);  // an alert of TLS has 7 bytes
}

void DialProof::step(Bytes message) {
  switch (expects_) {
    case Expects::magic:
      if (std::memcmp(message.data(), kMagic.data(), message.size()) != 0)
        return refuse(is_tls(message) ? Refusal::speaks_tls : Refusal::not_lockstep);
      expects_ = Expects::answer;
      return expect(1 + sizeof(Nonce) + sizeof(Code));
    case Expects::answer:
      if (std::to_integer<char>(message[0]) != kMagic.back()) return refuse(Refusal::not_lockstep);
      std::copy_n(message.begin() + 1, server_.size(), server_.begin());
      if (!same_code(message.subspan(1 + sizeof(Nonce)), code("server", {})))
        return refuse(Refusal::wrong_secret);
      send(code("client", hello_));
      send(hello_length(hello_));
      send(hello_);
      expects_ = Expects::acceptance;
      return expect(sizeof(Code));
    case Expects::acceptance:
      if (!same_code(message, code("accept", {}))) return refuse(Refusal::wrong_secret);
      return prove();
  }
}

}  // namespace lockstep::net
