#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "lockstep/base/error.h"
#include "net/socket_io.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

constexpr std::size_t kHeader = 5;  // of a record

}  // namespace

// What OpenSSL sees instead of a socket.
struct TlsBio {
  // OpenSSL asks for a record's header, then for its body.
  static int read(BIO* bio, char* into, int length) {
    BIO_clear_retry_flags(bio);
    TlsConnection& link = *static_cast<TlsConnection*>(BIO_get_data(bio));
    if (length <= 0 || !link.lost_.empty()) return -1;
    const auto wanted = static_cast<std::size_t>(length);
    std::size_t got = std::min(wanted, link.ahead_end_ - link.ahead_begin_);
    if (got > 0) {
      std::memcpy(into, link.ahead_.data() + link.ahead_begin_, got);
      link.ahead_begin_ += got;
      return static_cast<int>(got);
    }
    try {
      // Of what follows a large body only the next header, so that the next body is not copied either.
      const std::size_t beyond = wanted >= link.ahead_.size() ? kHeader : link.ahead_.size();
      got = receive(link.fd(), {reinterpret_cast<std::byte*>(into), wanted},
                    std::span(link.ahead_).first(beyond));
    } catch (const ConnectionLost& lost) {
      link.lost_ = lost.reason;
      return -1;
    }
    if (got == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    if (link.first_ == std::byte{}) link.first_ = *reinterpret_cast<std::byte*>(into);
    link.ahead_begin_ = 0;
    link.ahead_end_ = got > wanted ? got - wanted : 0;
    return static_cast<int>(std::min(got, wanted));
  }

  static int write(BIO* bio, const char* bytes, int length) {
    BIO_clear_retry_flags(bio);
    TlsConnection& link = *static_cast<TlsConnection*>(BIO_get_data(bio));
    if (length <= 0 || !link.lost_.empty()) return -1;
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
    link.unsent_.insert(link.unsent_.end(), begin, begin + length);
    return length;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* method() {
    static const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> made = [] {
      std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> m(
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lockstep"), &BIO_meth_free);
      if (m == nullptr) throw SystemError("OpenSSL gave no memory");
      BIO_meth_set_read(m.get(), &TlsBio::read);
      BIO_meth_set_write(m.get(), &TlsBio::write);
      BIO_meth_set_ctrl(m.get(), &TlsBio::control);
      return m;
    }();
    return made.get();
  }
};

TlsConnection::TlsConnection(const TlsContext& context, UniqueFd socket)
    : socket_(std::move(socket)), ssl_(SSL_new(context.get()), &SSL_free) {
  BIO* const bio = BIO_new(TlsBio::method());
  if (ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    ERR_clear_error();
    throw SystemError("OpenSSL gave no memory for a connection");
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (context.side() == TlsSide::gate) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

TlsConnection::~TlsConnection() {
  if (!socket_ || !lost_.empty() || unsent() || SSL_in_init(ssl_.get()) != 0) return;
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
  try {
    flush();
  } catch (const ConnectionLost&) {  // then there is nobody to greet
  }
}

bool TlsConnection::flush() {
  if (!lost_.empty()) throw ConnectionLost{lost_};
  while (unsent()) {
    const std::size_t sent = transmit(fd(), std::span(unsent_).subspan(unsent_begin_));
    if (sent == 0) return false;
    unsent_begin_ += sent;
  }
  unsent_.clear();
  unsent_begin_ = 0;
  return true;
}

std::size_t TlsConnection::read(std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    std::size_t got = 0;
    ERR_clear_error();
    if (SSL_read_ex(ssl(), into.data() + done, into.size() - done, &got) == 1) {
      done += got;
      continue;
    }
    if (SSL_get_error(ssl(), 0) == SSL_ERROR_WANT_READ) break;
    // What came before the end counts first; the next call meets the end again.
    if (done > 0) break;
    throw ConnectionLost{failure()};
  }
  return done;
}

void TlsConnection::write(Bytes bytes) {
  rekey_when_due(bytes.size());
  std::size_t written = 0;
  ERR_clear_error();
  if (bytes.empty()) return;
  if (SSL_write_ex(ssl(), bytes.data(), bytes.size(), &written) != 1 || written != bytes.size())
    throw ConnectionLost{failure()};
}

void TlsConnection::rekey_when_due(std::size_t bytes) {
  records_ += 1 + bytes / kTlsRecord;
  if (records_ < records_per_key_) return;
  records_ = 0;
  if (SSL_key_update(ssl(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) throw ConnectionLost{failure()};
}

std::string TlsConnection::failure() {
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  if (!lost_.empty()) return lost_;
  if ((SSL_get_shutdown(ssl()) & SSL_RECEIVED_SHUTDOWN) != 0) return reason_of(0);
  const char* const text = error != 0 ? ERR_reason_error_string(error) : nullptr;
  return std::string("TLS failed: ") + (text != nullptr ? text : "unknown reason");
}

}  // namespace lockstep::net
