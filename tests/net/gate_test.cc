// Those who belong to the job get in, and learn what is wrong when they do not.
#include "net/gate.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/free_port.h"
#include "lockstep/base/error.h"
#include "net/socket.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

class GateTest : public ::testing::TestWithParam<Security> {
 protected:
  std::unique_ptr<Stream> call(const std::string& hello) const {
    return dial(gate_.endpoint(), secret_, GetParam(), hello, soon());
  }
  Secret secret_ = Secret::make();
  Gate gate_{loopback_gate(secret_, GetParam())};
};

TEST_P(GateTest, LetsInWhoKnowsTheSecret) {
  const auto ours = call("worker 3");
  const auto theirs = gate_.wait_for("worker 3", soon());
  ASSERT_NE(theirs, nullptr);
  EXPECT_TRUE(works(*ours, *theirs));
  EXPECT_TRUE(works(*theirs, *ours));
}

TEST_P(GateTest, FindsTheOneThatIsAskedFor) {
  const auto a = call("a");
  const auto b1 = call("b");
  const auto b2 = call("b");
  EXPECT_EQ(gate_.wait_for("c", in(std::chrono::milliseconds(10))), nullptr);
  const auto first_b = gate_.wait_for("b", soon());
  const auto second_b = gate_.wait_for("b", soon());
  ASSERT_NE(first_b, nullptr);
  ASSERT_NE(second_b, nullptr);
  EXPECT_TRUE(works(*b1, *first_b));
  EXPECT_TRUE(works(*b2, *second_b));
  const auto any = gate_.next(soon());
  EXPECT_EQ(any.hello, "a");
  EXPECT_EQ(gate_.next(in(std::chrono::milliseconds(0))).stream, nullptr);
}

TEST_P(GateTest, ItsDescriptorIsReadableWhileSomebodyWaits) {
  EXPECT_FALSE(wait_ready(gate_.ready_fd(), POLLIN, in(std::chrono::milliseconds(0))));
  const auto a = call("a");
  const auto b = call("b");
  EXPECT_TRUE(wait_ready(gate_.ready_fd(), POLLIN, soon()));
  gate_.wait_for("b", soon());
  EXPECT_TRUE(wait_ready(gate_.ready_fd(), POLLIN, in(std::chrono::milliseconds(0))));
  gate_.wait_for("a", soon());
  EXPECT_FALSE(wait_ready(gate_.ready_fd(), POLLIN, in(std::chrono::milliseconds(0))));
}

TEST_P(GateTest, WaitersOnSeveralThreadsGetTheirOwn) {
  std::vector<std::jthread> waiters;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i)
    waiters.emplace_back([&, i] {
      const auto stream = gate_.wait_for(std::to_string(i), soon());
      if (stream != nullptr && receive_all(*stream, 1)[0] == static_cast<std::byte>(i)) ++good;
    });
  std::vector<std::unique_ptr<Stream>> diallers;
  for (int i = 7; i >= 0; --i) {
    diallers.push_back(call(std::to_string(i)));
    const std::byte number[] = {static_cast<std::byte>(i)};
    send_all(*diallers.back(), number);
  }
  waiters.clear();
  EXPECT_EQ(good, 8);
}

TEST_P(GateTest, TheLongestHelloPassesALongerOneDoesNot) {
  const std::string longest(kMostHello, 'h');
  const auto ours = call(longest);
  EXPECT_NE(gate_.wait_for(longest, soon()), nullptr);
  EXPECT_THROW(call(longest + "h"), UsageError);
  const auto empty = call("");
  EXPECT_NE(gate_.wait_for("", soon()), nullptr);
}

TEST_P(GateTest, AnotherSecretIsToldApart) {
  try {
    dial(gate_.endpoint(), Secret::make(), GetParam(), "x", soon());
    FAIL() << "got in";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), -1);
    const std::string message = error.what();
    EXPECT_NE(message.find("does not know this job's secret"), std::string::npos) << message;
    EXPECT_NE(message.find("LOCKSTEP_SECRET_FILE"), std::string::npos) << message;
    EXPECT_EQ(message.find(secret_.hex()), std::string::npos) << message;
  }
  EXPECT_EQ(gate_.next(in(std::chrono::milliseconds(20))).stream, nullptr);
}

TEST_P(GateTest, TheOtherKindOfConnectionIsToldApart) {
  const bool tls = GetParam() == Security::tls;
  try {
    dial(gate_.endpoint(), secret_, tls ? Security::plaintext : Security::tls, "x", soon());
    FAIL() << "got in";
  } catch (const PeerError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(tls ? "speaks TLS, but this side does not"
                               : "speaks plaintext, but this side speaks TLS"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("LOCKSTEP_TLS"), std::string::npos) << message;
  }
  EXPECT_EQ(gate_.next(in(std::chrono::milliseconds(20))).stream, nullptr);
}

TEST_P(GateTest, ListensAtTheAskedAddressOnly) {
  // "  0: 0100007F:1F90 00000000:0000 0A …": 0A is LISTEN, addresses as the processor stores them.
  const std::uint16_t port = gate_.endpoint().port;
  int listeners = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const std::size_t colon = local.find(':');
      if (state != "0A" || std::stoul(local.substr(colon + 1), nullptr, 16) != port) continue;
      ++listeners;
      EXPECT_EQ(local.substr(0, colon), "0100007F") << table << ": " << line;
    }
  }
  EXPECT_EQ(listeners, 1);
}

TEST_P(GateTest, DialWaitsUntilSomebodyListens) {
  const Endpoint endpoint{.host = "127.0.0.1", .port = free_port()};
  std::unique_ptr<Gate> late;
  std::jthread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    auto options = loopback_gate(secret_, GetParam());
    options.port = endpoint.port;
    late = std::make_unique<Gate>(options);
  });
  const auto stream = dial(endpoint, secret_, GetParam(), "early", soon());
  opener.join();
  EXPECT_NE(late->wait_for("early", soon()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Both, GateTest, ::testing::Values(Security::plaintext, Security::tls),
                         &security_name);

TEST(Gate, RefusesAllInterfacesAndNames) {
  for (const char* address : {"0.0.0.0", "::"}) {
    auto options = loopback_gate(Secret::make(), Security::tls);
    options.address = address;
    EXPECT_THROW(Gate{options}, UsageError) << address;
  }
  auto options = loopback_gate(Secret::make(), Security::tls);
  options.address = "localhost";
  EXPECT_THROW(Gate{options}, SystemError);
}

TEST(Gate, APortInUseIsNamed) {
  const Gate first(loopback_gate(Secret::make(), Security::tls));
  auto options = loopback_gate(Secret::make(), Security::tls);
  options.port = first.endpoint().port;
  try {
    const Gate second(options);
    FAIL() << "two gates at one port";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find(first.endpoint().text()), std::string::npos) << error.what();
  }
}

TEST(Dial, SaysThatNobodyListens) {
  const Endpoint endpoint{.host = "127.0.0.1", .port = free_port()};
  try {
    dial(endpoint, Secret::make(), Security::tls, "x", in(std::chrono::milliseconds(100)));
    FAIL() << "somebody did";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("nobody listens at " + endpoint.text()), std::string::npos)
        << error.what();
  }
}

// At once where a resolver knows; where none can be asked it is tried until the time is over.
TEST(Dial, SaysThatANameDoesNotResolve) {
  try {
    dial({"no-such-host.invalid", 1}, Secret::make(), Security::tls, "x", in(std::chrono::seconds(2)));
    FAIL() << "somebody did";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'no-such-host.invalid' does not resolve"), std::string::npos) << text;
  }
}

// Somebody else's server: accepts and answers every connection in the same way.
class OtherServer {
 public:
  explicit OtherServer(std::string answer) : answer_(std::move(answer)), door_(make_socket(AF_INET)) {
    const SocketAddress any = resolve("127.0.0.1", 0, Lookup::numbers).front();
    if (::bind(door_.get(), any.get(), any.length) != 0 || ::listen(door_.get(), 100) != 0)
      throw std::runtime_error("can't listen");
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!wait_ready(door_.get(), POLLIN, in(std::chrono::milliseconds(20)))) continue;
        const UniqueFd one(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        char buffer[2000];
        [[maybe_unused]] const auto got = ::recv(one.get(), buffer, sizeof buffer, 0);
        [[maybe_unused]] const auto sent = ::send(one.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
    });
  }
  Endpoint endpoint() const { return {"127.0.0.1", local_end(door_.get()).port()}; }

 private:
  std::string answer_;
  UniqueFd door_;
  std::jthread thread_;
};

TEST(Dial, SaysThatThePortIsAnotherPrograms) {
  const OtherServer server("HTTP/1.1 400 Bad Request\r\n\r\n");
  for (const Security security : {Security::plaintext, Security::tls}) {
    try {
      dial(server.endpoint(), Secret::make(), security, "x", in(std::chrono::seconds(5)));
      FAIL() << "got in";
    } catch (const PeerError& error) {
      EXPECT_NE(std::string(error.what()).find("another program"), std::string::npos) << error.what();
    }
  }
}

TEST(Dial, TriesAgainWhenHungUpOnAndSaysSoInTheEnd) {
  const OtherServer server("");
  for (const Security security : {Security::plaintext, Security::tls}) {
    try {
      dial(server.endpoint(), Secret::make(), security, "x", in(std::chrono::milliseconds(200)));
      FAIL() << "got in";
    } catch (const PeerError& error) {
      EXPECT_NE(std::string(error.what()).find("before it proved itself"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::net
