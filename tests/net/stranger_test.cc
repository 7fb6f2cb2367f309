// Strangers at the gate: whatever they do, they get nothing and disturb nobody.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "net/gate.h"
#include "net/proof.h"
#include "net/socket.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

constexpr std::chrono::milliseconds kPatience{300};

class StrangerTest : public ::testing::TestWithParam<Security> {
 protected:
  GateOptions options() const {
    auto options = loopback_gate(secret_, GetParam());
    options.patience = kPatience;
    return options;
  }
  // Somebody of the job still gets in, and no stranger did.
  void expect_unharmed() {
    const auto ours = dial(gate_.endpoint(), secret_, GetParam(), "job", soon());
    const auto arrival = gate_.next(soon());
    ASSERT_NE(arrival.stream, nullptr);
    EXPECT_EQ(arrival.hello, "job");
    EXPECT_TRUE(works(*ours, *arrival.stream));
    EXPECT_EQ(gate_.next(in(std::chrono::milliseconds(0))).stream, nullptr);
  }
  // The most that a gate says to somebody who has proven nothing.
  static constexpr std::size_t kMostSaid = kMagicBytes + sizeof(Nonce) + sizeof(Code);

  Secret secret_ = Secret::make();
  Gate gate_{options()};
};

TEST_P(StrangerTest, WhoSaysNothingIsHungUpOnAndHearsNothing) {
  const auto begin = Clock::now();
  const Stranger stranger(gate_.endpoint());
  const auto heard = stranger.listen(std::chrono::seconds(10));
  EXPECT_TRUE(heard.closed);
  EXPECT_EQ(heard.bytes, "");
  EXPECT_GE(Clock::now() - begin, kPatience / 2);
  expect_unharmed();
}

TEST_P(StrangerTest, RandomBytesGetNothing) {
  RandomStream random(1, 0, 0);
  for (int round = 0; round < 200; ++round) {
    const Stranger stranger(gate_.endpoint());
    std::string noise(1 + random.below(300), '\0');
    for (char& c : noise) c = static_cast<char>(random.below(256));
    // Some begin as a real one would.
    if (round % 4 == 1) noise.insert(0, std::string_view(kMagic.data(), kMagic.size()));
    if (round % 4 == 2) noise.insert(0, "\x16\x03\x01\x01");
    stranger.send(noise);
    ::shutdown(stranger.fd(), SHUT_WR);
    const auto heard = stranger.listen(std::chrono::seconds(10));
    EXPECT_TRUE(heard.closed);
    EXPECT_LE(heard.bytes.size(), kMostSaid);
  }
  expect_unharmed();
}

TEST_P(StrangerTest, ASlowOneIsHungUpOn) {
  const Stranger stranger(gate_.endpoint());
  // A byte every 20 ms, for longer than the gate's patience, of a greeting that never ends: what is whole is
  // hung up on for what it says.
  std::string greeting = GetParam() == Security::tls ? std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9)
                                                     : std::string(kMagic.data(), kMagic.size());
  greeting.resize(kMagicBytes + sizeof(Nonce) - 1, 'n');
  const auto begin = Clock::now();
  std::size_t said = 0;
  Stranger::Heard heard;
  while (!heard.closed && Clock::now() - begin < std::chrono::seconds(10)) {
    if (said < greeting.size()) stranger.send(greeting.substr(said++, 1));
    heard = stranger.listen(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(heard.closed);
  expect_unharmed();
}

TEST_P(StrangerTest, ARecordedHandshakeIsNoCredential) {
  std::string said;
  {
    Relay relay(gate_.endpoint());
    auto ours = dial(relay.endpoint(), secret_, GetParam(), "recorded", soon());
    auto theirs = gate_.wait_for("recorded", soon());
    ASSERT_TRUE(works(*ours, *theirs));
    ours.reset();
    said = relay.finish();
  }
  ASSERT_GT(said.size(), 74U);
  // All at once, and answer by answer.
  const Stranger hasty(gate_.endpoint());
  hasty.send(said);
  const auto first = hasty.listen(std::chrono::seconds(10));
  EXPECT_TRUE(first.closed);
  const Stranger polite(gate_.endpoint());
  polite.send(said.substr(0, GetParam() == Security::plaintext ? 40 : said.size() - 20));
  polite.listen(std::chrono::milliseconds(50));
  polite.send(said.substr(GetParam() == Security::plaintext ? 40 : said.size() - 20));
  const auto second = polite.listen(std::chrono::seconds(10));
  EXPECT_TRUE(second.closed);
  expect_unharmed();
}

TEST_P(StrangerTest, HalfOpenConnectionsAreForgotten) {
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<Stranger>(gate_.endpoint()));
    if (i % 2 == 0) ::shutdown(strangers.back()->fd(), SHUT_WR);
    if (i % 3 == 0) strangers.back()->send("L");
  }
  expect_unharmed();  // while they stand there
  for (const auto& stranger : strangers) EXPECT_TRUE(stranger->listen(std::chrono::seconds(10)).closed);
}

TEST_P(StrangerTest, AThousandAtOnceDisturbNobody) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_GE(limit.rlim_cur, 2000U) << "the test needs 2000 descriptors";

  const auto ours = dial(gate_.endpoint(), secret_, GetParam(), "data", soon());
  const auto theirs = gate_.wait_for("data", soon());
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  const auto bytes = random_bytes(100'000, 2);
  std::jthread worker([&] {
    while (!stop) {
      std::vector<std::byte> got;
      std::jthread reader([&] { got = receive_all(*theirs, bytes.size()); });
      send_all(*ours, bytes);
      reader.join();
      if (got != bytes) return;
      ++rounds;
    }
  });
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Stranger>(gate_.endpoint()));
    if (i % 2 == 0) crowd.back()->send(std::string_view(kMagic.data(), kMagic.size()));
  }
  const int before_all = rounds;
  expect_unharmed();
  const Deadline until = soon();
  while (rounds < before_all + 3 && !until.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(rounds.load(), before_all + 3) << "the job's connection stands still";
  stop = true;
  worker.join();
  for (const auto& stranger : crowd) EXPECT_TRUE(stranger->listen(std::chrono::seconds(10)).closed);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_P(StrangerTest, TheOldestGoesWhenOneMoreComes) {
  auto few = options();
  few.most_unproven = 3;
  few.patience = std::chrono::seconds(60);
  const Gate gate(few);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 4; ++i) {
    strangers.push_back(std::make_unique<Stranger>(gate.endpoint()));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(strangers[0]->listen(std::chrono::seconds(10)).closed);
  for (int i = 1; i < 4; ++i)
    EXPECT_FALSE(strangers[static_cast<std::size_t>(i)]->listen(std::chrono::milliseconds(20)).closed) << i;
}

TEST_P(StrangerTest, TheGateOutlivesALackOfDescriptors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object's type, and takes its absence for a broken object";
#endif
  const Stranger stranger(gate_.endpoint());  // its socket is made before they run out
  std::vector<UniqueFd> hoard;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 256);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  UniqueFd late = make_socket(AF_INET);
  for (;;) {
    UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one) break;
    hoard.push_back(std::move(one));
  }
  ASSERT_EQ(errno, EMFILE);
  const SocketAddress to = resolve("127.0.0.1", gate_.endpoint().port, Lookup::numbers).front();
  ::connect(late.get(), to.get(), to.length);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // the gate fails to accept, again and again
  hoard.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
  expect_unharmed();
}

INSTANTIATE_TEST_SUITE_P(Both, StrangerTest, ::testing::Values(Security::plaintext, Security::tls),
                         &security_name);

// A TLS side of somebody else, who does not have the key. True when its handshake succeeded.
class OtherTls {
 public:
  explicit OtherTls(int highest_version) : context_(SSL_CTX_new(TLS_method()), &SSL_CTX_free) {
    SSL_CTX_set_max_proto_version(context_.get(), highest_version);
  }
  SSL_CTX* context() const { return context_.get(); }

  void show_a_certificate() {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context_.get(), certificate);
    SSL_CTX_use_PrivateKey(context_.get(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  enum class Side { client, server };
  bool shake_hands(int socket, Side side) const {
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context_.get()), &SSL_free);
    const int flags = ::fcntl(socket, F_GETFL);
    ::fcntl(socket, F_SETFL, flags & ~O_NONBLOCK);
    SSL_set_fd(ssl.get(), socket);
    bool good = (side == Side::client ? SSL_connect(ssl.get()) : SSL_accept(ssl.get())) == 1;
    // TLS 1.3's client learns only by reading that it was refused.
    char byte = 0;
    if (good && side == Side::client)
      good = SSL_write(ssl.get(), "\0\1x", 3) > 0 && SSL_read(ssl.get(), &byte, 1) == 1;
    ERR_clear_error();
    return good;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

TEST(TlsStranger, WithoutTheKeyGetsNothing) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's own sockets
  const Gate gate(loopback_gate(Secret::make(), Security::tls));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const Stranger stranger(gate.endpoint());
    EXPECT_FALSE(OtherTls(version).shake_hands(stranger.fd(), OtherTls::Side::client));
  }
}

int offer_unknown(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* length,
                  SSL_SESSION** session) {
  const unsigned char cipher[] = {0x13, 0x01};
  const std::string key(32, 'k');
  *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(*session, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, cipher));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  *id = reinterpret_cast<const unsigned char*>("somebody");
  *length = 8;
  return 1;
}

TEST(TlsStranger, WithAnotherIdentityGetsNothing) {
  std::signal(SIGPIPE, SIG_IGN);
  const Gate gate(loopback_gate(Secret::make(), Security::tls));
  const OtherTls other(TLS1_3_VERSION);
  SSL_CTX_set_psk_use_session_callback(other.context(), &offer_unknown);
  const Stranger stranger(gate.endpoint());
  EXPECT_FALSE(other.shake_hands(stranger.fd(), OtherTls::Side::client));
}

TEST(TlsStranger, AServerWithACertificateIsNotBelieved) {
  std::signal(SIGPIPE, SIG_IGN);
  OtherTls other(TLS1_3_VERSION);
  other.show_a_certificate();
  const UniqueFd door = make_socket(AF_INET);
  const SocketAddress any = resolve("127.0.0.1", 0, Lookup::numbers).front();
  ASSERT_EQ(::bind(door.get(), any.get(), any.length), 0);
  ASSERT_EQ(::listen(door.get(), 10), 0);
  bool shook = true;
  std::jthread server([&] {
    if (!wait_ready(door.get(), POLLIN, soon())) return;
    const UniqueFd one(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    shook = other.shake_hands(one.get(), OtherTls::Side::server);
  });
  try {
    dial({"127.0.0.1", local_end(door.get()).port()}, Secret::make(), Security::tls, "x", soon());
    ADD_FAILURE() << "believed it";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("does not know this job's secret"), std::string::npos)
        << error.what();
  }
  server.join();
  EXPECT_FALSE(shook);
}

}  // namespace
}  // namespace lockstep::net
