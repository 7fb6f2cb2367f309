#include "lockstep/base/error.h"
#include "net/handshake.h"
#include "net/proof.h"
#include "net/socket_io.h"

namespace lockstep::net {
namespace {

using Why = HandshakeFailed::Why;

HandshakeFailed failure_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::speaks_tls: return {Why::other_security, "speaks TLS, but this side does not"};
    case Refusal::wrong_secret: return {Why::wrong_secret, "does not know this job's secret"};
    case Refusal::long_hello: return {Why::not_lockstep, "sent a hello that is too long"};
    default: return {Why::not_lockstep, "does not speak Lockstep's handshake"};
  }
}

template <typename Side>
class PlainHandshake final : public Handshake {
 public:
  PlainHandshake(Side proof, UniqueFd socket, std::string peer)
      : proof_(std::move(proof)), socket_(std::move(socket)), peer_(std::move(peer)) {}

  int fd() const override { return socket_.get(); }

  Wants advance() override {
    try {
      for (;;) {
        to_send_ += proof_.to_send();
        while (!to_send_.empty()) {
          const std::size_t sent = transmit(fd(), std::as_bytes(std::span(to_send_)));
          if (sent == 0) return Wants::write;
          to_send_.erase(0, sent);
          answered_ = std::is_same_v<Side, GateProof>;
        }
        if (proof_.state() == ProofState::proven) return Wants::nothing;
        std::byte buffer[512];
        const std::size_t got =
            receive(fd(), std::span(buffer).first(std::min(sizeof buffer, proof_.wants())));
        if (got == 0) return Wants::read;
        if (proof_.take(std::span(buffer).first(got)) == ProofState::refused) refuse();
      }
    } catch (const ConnectionLost& lost) {
      if (answered_)
        throw HandshakeFailed{Why::wrong_secret, "left at this side's proof: has it another secret?"};
      throw HandshakeFailed{Why::dropped, lost.reason};
    }
  }

  std::string hello() const override {
    if constexpr (std::is_same_v<Side, GateProof>) return proof_.hello();
    return {};
  }

  std::unique_ptr<Stream> stream() override { return plain_stream(socket_.release(), peer_); }

 private:
  [[noreturn]] void refuse() {
    if (std::is_same_v<Side, GateProof> && proof_.refusal() == Refusal::speaks_tls) {
      // So that a dialler of this job learns which of the two settings is wrong. What it sent is read first,
      // as far as one read goes: closing a socket with unread bytes would destroy the answer.
      std::byte rest[2048];
      receive(fd(), rest);
      transmit(fd(), std::as_bytes(std::span(kMagic)));
    }
    throw failure_of(proof_.refusal());
  }

  Side proof_;
  UniqueFd socket_;
  std::string peer_;
  std::string to_send_;
  bool answered_ = false;  // the gate has shown its proof: a dialler with another secret leaves then
};

}  // namespace

Secret plain_key(const Secret& secret) { return secret.derive("lockstep plaintext handshake"); }

std::unique_ptr<Handshake> plain_gate_handshake(const Secret& key, UniqueFd socket, std::string peer) {
  return std::make_unique<PlainHandshake<GateProof>>(GateProof(key, fresh_nonce()), std::move(socket),
                                                     std::move(peer));
}

std::unique_ptr<Handshake> plain_dial_handshake(const Secret& key, UniqueFd socket, std::string peer,
                                                const std::string& hello) {
  return std::make_unique<PlainHandshake<DialProof>>(DialProof(key, fresh_nonce(), hello), std::move(socket),
                                                     std::move(peer));
}

}  // namespace lockstep::net
