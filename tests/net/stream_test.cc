// Bytes over both kinds of streams, through real sockets.
#include "net/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <thread>

#include "lockstep/base/random.h"
#include "net/socket.h"
#include "net/tls.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

class StreamTest : public ::testing::TestWithParam<Security> {
 protected:
  Pair pair_ = connected(GetParam());
};

TEST_P(StreamTest, CarriesMuchBothWaysAtOnce) {
  const auto there = random_bytes((std::size_t{6} << 20) + 17, 1);
  const auto back = random_bytes((std::size_t{5} << 20) + 3, 2);
  std::vector<std::byte> at_gate;
  std::jthread other([&] { at_gate = exchange(*pair_.gate, back, there.size()); });
  const auto at_dialler = exchange(*pair_.dialler, there, back.size());
  other.join();
  EXPECT_TRUE(at_dialler == back);
  EXPECT_TRUE(at_gate == there);
}

TEST_P(StreamTest, CarriesTinyPiecesInOrder) {
  const auto bytes = random_bytes(200'000, 3);
  std::jthread sender([&] {
    RandomStream random(4, 0, 0);
    Bytes rest = bytes;
    while (!rest.empty()) {
      // Parts of 0 to 600 bytes, some empty, up to 20 in one write; whatever was not taken comes again.
      std::vector<Bytes> parts;
      std::size_t total = 0;
      for (std::uint64_t i = random.below(20); i > 0; --i) {
        const std::size_t length = std::min<std::size_t>(random.below(600), rest.size() - total);
        parts.push_back(rest.subspan(total, length));
        total += length;
      }
      std::size_t sent = 0;
      while (sent < total) {
        std::vector<Bytes> left;
        std::size_t skip = sent;
        for (const Bytes part : parts) {
          const std::size_t cut = std::min(skip, part.size());
          left.push_back(part.subspan(cut));
          skip -= cut;
        }
        const std::size_t now = pair_.dialler->write(left);
        sent += now;
        if (now == 0) wait_ready(pair_.dialler->fd(), POLLOUT, soon());
      }
      rest = rest.subspan(total);
    }
  });
  std::vector<std::byte> received;
  RandomStream random(5, 0, 0);
  while (received.size() < bytes.size()) {
    std::array<std::byte, 40> buffer;
    const std::size_t wanted = 1 + random.below(buffer.size());
    const std::size_t got = pair_.gate->read(std::span(buffer).first(wanted));
    ASSERT_LE(got, wanted);
    received.insert(received.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(got));
    if (got == 0) {
      ASSERT_FALSE(pair_.gate->pending());
      ASSERT_TRUE(wait_ready(pair_.gate->fd(), POLLIN, soon()));
    }
  }
  EXPECT_TRUE(received == bytes);
}

TEST_P(StreamTest, WritesNothingMoreIntoAFullSocketAndGoesOnLater) {
  const auto bytes = random_bytes(std::size_t{64} << 20, 6);
  const std::array<Bytes, 1> all = {bytes};
  std::size_t sent = 0;
  for (;;) {  // until a write takes nothing
    const std::array<Bytes, 1> rest = {all[0].subspan(sent)};
    const std::size_t now = pair_.dialler->write(rest);
    sent += now;
    if (now == 0) break;
  }
  ASSERT_LT(sent, bytes.size()) << "the kernel took all of it: the test needs more";
  std::vector<std::byte> received;
  std::jthread reader([&] { received = receive_all(*pair_.gate, bytes.size()); });
  send_all(*pair_.dialler, all[0].subspan(sent));
  reader.join();
  EXPECT_TRUE(received == bytes);
}

TEST_P(StreamTest, PendingSaysWhatTheDescriptorDoesNot) {
  send_all(*pair_.dialler, random_bytes(1000, 7));
  ASSERT_TRUE(wait_ready(pair_.gate->fd(), POLLIN, soon()));
  std::array<std::byte, 1> one;
  std::size_t got = 0;
  while (got == 0) got = pair_.gate->read(one);
  for (; got < 1000; ++got) {
    // Wherever the bytes are, one of the two tells.
    ASSERT_TRUE(pair_.gate->pending() ||
                wait_ready(pair_.gate->fd(), POLLIN, in(std::chrono::milliseconds(0))))
        << got;
    ASSERT_EQ(pair_.gate->read(one), 1U);
  }
  EXPECT_EQ(pair_.gate->read(one), 0U);
  EXPECT_FALSE(pair_.gate->pending());
}

TEST_P(StreamTest, TheEndComesAfterTheBytesBeforeIt) {
  send_all(*pair_.dialler, bytes_of("last words"));
  pair_.dialler.reset();
  EXPECT_EQ(receive_all(*pair_.gate, 10).size(), 10U);
  std::array<std::byte, 8> buffer;
  try {
    for (;;) {
      ASSERT_EQ(pair_.gate->read(buffer), 0U);
      ASSERT_TRUE(wait_ready(pair_.gate->fd(), POLLIN, soon()));
    }
  } catch (const ConnectionLost& lost) {
    EXPECT_EQ(lost.reason, "closed the connection");
  }
  EXPECT_THROW(pair_.gate->read(buffer), ConnectionLost);
}

TEST_P(StreamTest, WritingToOneThatWentIsNoSignal) {
  std::signal(SIGPIPE, SIG_DFL);  // it would end the test
  pair_.gate.reset();
  const auto bytes = random_bytes(1 << 20, 8);
  EXPECT_THROW(for (int i = 0; i < 100; ++i) send_all(*pair_.dialler, bytes), ConnectionLost);
  EXPECT_THROW(send_all(*pair_.dialler, bytes), ConnectionLost);
}

TEST_P(StreamTest, NamesItsPeerAndIsNotInherited) {
  EXPECT_TRUE(pair_.gate->peer().starts_with("127.0.0.1:")) << pair_.gate->peer();
  EXPECT_EQ(pair_.gate->peer(), local_end(pair_.dialler->fd()).text());
  for (const Stream* stream : {pair_.gate.get(), pair_.dialler.get()})
    EXPECT_NE(::fcntl(stream->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

INSTANTIATE_TEST_SUITE_P(Both, StreamTest, ::testing::Values(Security::plaintext, Security::tls),
                         &security_name);

// Two TLS links over a pair of sockets, after their handshake.
struct Links {
  Secret secret = Secret::make();
  TlsContext gate_context{secret, TlsSide::gate};
  TlsContext dial_context{secret, TlsSide::dialler};
  std::unique_ptr<TlsConnection> gate;
  std::unique_ptr<TlsConnection> dialler;

  Links() {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0)
      throw std::bad_alloc();
    gate = std::make_unique<TlsConnection>(gate_context, UniqueFd(sockets[0]));
    dialler = std::make_unique<TlsConnection>(dial_context, UniqueFd(sockets[1]));
    for (bool done = false; !done;) {
      done = true;
      for (const auto& link : {dialler.get(), gate.get()}) {
        done = SSL_do_handshake(link->ssl()) == 1 && done;
        link->flush();
      }
    }
  }
};

// Counts the messages of TLS's own that announce a new key.
void count_key_updates(int sent, int, int kind, const void* bytes, std::size_t size, SSL*, void* count) {
  if (sent == 0 && kind == SSL3_RT_HANDSHAKE && size > 0 &&
      *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE)
    ++*static_cast<int*>(count);
}

TEST(TlsConnection, ChangesItsKeyInTheMiddle) {
  Links links;
  links.dialler->rekey_after(3);
  int updates = 0;
  SSL_set_msg_callback(links.gate->ssl(), &count_key_updates);
  SSL_set_msg_callback_arg(links.gate->ssl(), &updates);
  const auto bytes = random_bytes(1000, 9);
  for (int i = 0; i < 20; ++i) {
    links.dialler->write(bytes);
    ASSERT_TRUE(links.dialler->flush());
    std::vector<std::byte> got(bytes.size());
    ASSERT_EQ(links.gate->read(got), got.size()) << i;
    ASSERT_TRUE(got == bytes);
  }
  EXPECT_GE(updates, 5);
}

TEST(TlsConnection, IsTls13WithTheKeyAndNothingElse) {
  Links links;
  EXPECT_EQ(SSL_version(links.gate->ssl()), TLS1_3_VERSION);
  EXPECT_STREQ(SSL_get_cipher(links.gate->ssl()), "TLS_AES_128_GCM_SHA256");
  EXPECT_EQ(SSL_session_reused(links.gate->ssl()), 1);
  EXPECT_EQ(SSL_get0_peer_certificate(links.dialler->ssl()), nullptr);
}

TEST(TlsConnection, AChangedByteEndsTheConnection) {
  Links links;
  const std::string noise = std::string("\x17\x03\x03\x00\x20", 5) + "32 bytes that no key has sealed. ";
  ASSERT_EQ(::send(links.dialler->fd(), noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
  std::vector<std::byte> got(100);
  EXPECT_THROW(links.gate->read(got), ConnectionLost);
  EXPECT_THROW(links.gate->read(got), ConnectionLost);
}

}  // namespace
}  // namespace lockstep::net
