#include <openssl/err.h>

#include <cstring>

#include "lockstep/base/error.h"
#include "net/tls.h"

namespace lockstep::net {
namespace {

constexpr std::string_view kIdentity = "lockstep 1";
constexpr unsigned char kCipher[2] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

const TlsContext& context_of(SSL* ssl) {
  return *static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

// OpenSSL asks the dialler which key to offer.
int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* length,
              SSL_SESSION** session) {
  *session = nullptr;
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 0;
  *session = context_of(ssl).session(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

// OpenSSL asks the gate for the key of an identity. Without one there is no way on: the gate has no
// certificate.
int find_key(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
  *session = nullptr;
  if (length != kIdentity.size() || std::memcmp(identity, kIdentity.data(), length) != 0) return 1;
  *session = context_of(ssl).session(ssl);
  return *session != nullptr ? 1 : 0;
}

}  // namespace

TlsContext::TlsContext(const Secret& secret, TlsSide side)
    : key_(secret.derive("lockstep tls 1.3 psk")),
      side_(side),
      context_(SSL_CTX_new(TLS_method()), &SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set1_groups_list(context, "X25519") != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
    ERR_clear_error();
    throw SystemError("this OpenSSL can't do TLS 1.3 with AES-128-GCM and X25519");
  }
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_max_early_data(context, 0);
  SSL_CTX_set_app_data(context, this);
  if (side == TlsSide::dialler) {
    // There is no authority to trust: a gate that answers with a certificate instead of the key is refused
    // whatever it shows.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(context, &offer_key);
  } else {
    SSL_CTX_set_psk_find_session_callback(context, &find_key);
  }
}

SSL_SESSION* TlsContext::session(SSL* ssl) const {
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipher);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (cipher != nullptr && session != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key_.bytes().data()),
                                  key_.bytes().size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace lockstep::net
