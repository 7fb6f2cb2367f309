#include <openssl/err.h>

#include "lockstep/base/error.h"
#include "net/handshake.h"
#include "net/proof.h"
#include "net/socket_io.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

using Why = HandshakeFailed::Why;

// What both sides do: TLS's own handshake, then the hello one way and a byte of acceptance the other.
class TlsHandshake : public Handshake {
 public:
  TlsHandshake(const TlsContext& context, UniqueFd socket, std::string peer)
      : link_(std::make_unique<TlsConnection>(context, std::move(socket))), peer_(std::move(peer)) {}

  int fd() const override { return link_->fd(); }
  std::string hello() const override { return hello_; }
  std::unique_ptr<Stream> stream() override { return tls_stream(std::move(link_), std::move(peer_)); }

  Wants advance() override {
    try {
      if (!secured_ && !secure()) return link_->unsent() ? Wants::write : Wants::read;
      const bool finished = introduce();
      if (!link_->flush()) return Wants::write;
      return finished ? Wants::nothing : Wants::read;
    } catch (const ConnectionLost& lost) {
      throw HandshakeFailed{Why::dropped, lost.reason};
    }
  }

 protected:
  // After TLS: says or reads the hello; true when this side has nothing more to read.
  virtual bool introduce() = 0;
  // The other side speaks Lockstep's plaintext handshake.
  virtual void answer_plaintext() {}

  std::unique_ptr<TlsConnection> link_;
  std::string hello_;

 private:
  bool secure() {
    ERR_clear_error();
    const int result = SSL_do_handshake(link_->ssl());
    if (result == 1) {
      // OpenSSL calls a connection under an external key a resumed one. Nothing else may get here.
      if (SSL_session_reused(link_->ssl()) != 1 || SSL_version(link_->ssl()) != TLS1_3_VERSION)
        throw HandshakeFailed{Why::wrong_secret, "does not know this job's secret"};
      secured_ = true;
      return true;
    }
    const int error = SSL_get_error(link_->ssl(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      link_->flush();
      return false;
    }
    if (link_->first_byte() == std::byte{kMagic[0]}) {
      ERR_clear_error();
      answer_plaintext();
      throw HandshakeFailed{Why::other_security, "speaks plaintext, but this side speaks TLS"};
    }
    const unsigned long reason = ERR_peek_error();
    const std::string text = link_->failure();
    try {
      link_->flush();                  // the alert
    } catch (const ConnectionLost&) {  // is for them
    }
    // Any alert of theirs, and ours about what they showed instead of the key, is about the key: there is
    // nothing else that the two sides could disagree on.
    const bool about_key = ERR_GET_LIB(reason) == ERR_LIB_SSL &&
                           (ERR_GET_REASON(reason) >= SSL_AD_REASON_OFFSET ||
                            ERR_GET_REASON(reason) == SSL_R_CERTIFICATE_VERIFY_FAILED ||
                            ERR_GET_REASON(reason) == SSL_R_BINDER_DOES_NOT_VERIFY ||
                            ERR_GET_REASON(reason) == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM ||
                            ERR_GET_REASON(reason) == SSL_R_NO_SHARED_CIPHER ||
                            ERR_GET_REASON(reason) == SSL_R_BAD_DIGEST_LENGTH ||
                            ERR_GET_REASON(reason) == SSL_R_DIGEST_CHECK_FAILED);
    if (about_key) throw HandshakeFailed{Why::wrong_secret, "does not know this job's secret"};
    if (ERR_GET_LIB(reason) == ERR_LIB_SSL && text.starts_with("TLS failed"))
      throw HandshakeFailed{Why::not_lockstep, "does not speak Lockstep's handshake (" + text + ")"};
    throw HandshakeFailed{Why::dropped, text};
  }

  std::string peer_;
  bool secured_ = false;
};

class TlsGateHandshake final : public TlsHandshake {
 public:
  using TlsHandshake::TlsHandshake;

 private:
  // Perhaps a dialler of this job without TLS: the fixed alert "handshake failure" tells it.
  void answer_plaintext() override {
    constexpr unsigned char kAlert[] = {21, 3, 3, 0, 2, 2, 40};
    transmit(fd(), std::as_bytes(std::span(kAlert)));
  }

  bool introduce() override {
    if (accepted_) return true;
    while (received_.size() < wanted_) {
      std::byte buffer[kMostHello + 2];
      const std::size_t got = link_->read(std::span(buffer).first(wanted_ - received_.size()));
      if (got == 0) return false;
      received_.append(reinterpret_cast<const char*>(buffer), got);
      if (received_.size() == 2 && wanted_ == 2) {
        const std::size_t length = static_cast<std::size_t>(static_cast<unsigned char>(received_[0])) << 8 |
                                   static_cast<unsigned char>(received_[1]);
        if (length > kMostHello) throw HandshakeFailed{Why::not_lockstep, "sent a hello that is too long"};
        wanted_ += length;
      }
    }
    hello_ = received_.substr(2);
    constexpr std::byte kAccept[] = {std::byte{1}};
    link_->write(kAccept);
    accepted_ = true;
    return true;
  }

  std::string received_;
  std::size_t wanted_ = 2;
  bool accepted_ = false;
};

class TlsDialHandshake final : public TlsHandshake {
 public:
  TlsDialHandshake(const TlsContext& context, UniqueFd socket, std::string peer, const std::string& hello)
      : TlsHandshake(context, std::move(socket), std::move(peer)) {
    if (hello.size() > kMostHello)
      throw UsageError("a hello of " + std::to_string(hello.size()) + " bytes; accepted: at most " +
                       std::to_string(kMostHello));
    hello_ = hello;
  }

 private:
  bool introduce() override {
    if (!introduced_) {
      std::string message{static_cast<char>(hello_.size() >> 8), static_cast<char>(hello_.size() & 255)};
      message += hello_;
      link_->write(std::as_bytes(std::span(message)));
      introduced_ = true;
    }
    if (!link_->flush()) return false;
    std::byte answer[1];
    if (link_->read(answer) == 0) return false;
    if (answer[0] != std::byte{1}) throw HandshakeFailed{Why::not_lockstep, "did not accept the connection"};
    return true;
  }

  bool introduced_ = false;
};

}  // namespace

std::unique_ptr<Handshake> tls_gate_handshake(const TlsContext& context, UniqueFd socket, std::string peer) {
  return std::make_unique<TlsGateHandshake>(context, std::move(socket), std::move(peer));
}

std::unique_ptr<Handshake> tls_dial_handshake(const TlsContext& context, UniqueFd socket, std::string peer,
                                              const std::string& hello) {
  return std::make_unique<TlsDialHandshake>(context, std::move(socket), std::move(peer), hello);
}

}  // namespace lockstep::net
