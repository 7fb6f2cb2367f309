#include "net/address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/error.h"

namespace lockstep::net {
namespace {

Endpoint parse(std::string_view text) { return Endpoint::parse("--rdzv-endpoint", text, 29500); }

TEST(Endpoint, IsReadAsPeopleWriteIt) {
  EXPECT_EQ(parse("node0:1234"), (Endpoint{"node0", 1234}));
  EXPECT_EQ(parse("node0"), (Endpoint{"node0", 29500}));
  EXPECT_EQ(parse("10.0.0.1:65535"), (Endpoint{"10.0.0.1", 65535}));
  EXPECT_EQ(parse("[fd00::1]:80"), (Endpoint{"fd00::1", 80}));
  EXPECT_EQ(parse("[fe80::1%eth0]"), (Endpoint{"fe80::1%eth0", 29500}));
  EXPECT_EQ(parse("fd00::1"), (Endpoint{"fd00::1", 29500}));
}

TEST(Endpoint, IsWrittenAsItIsRead) {
  for (const char* text : {"node0:1234", "10.0.0.1:1", "[fd00::1]:80"}) EXPECT_EQ(parse(text).text(), text);
}

TEST(Endpoint, RefusesWhatIsNone) {
  for (const char* text :
       {"", ":", ":80", "node0:", "node0:0", "node0:65536", "node0:8a", "node0:-1", "[fd00::1", "[fd00::1]80",
        "[node0]:80", "[]:80", "no de:80", "http://node0:80", "node0\n:80"}) {
    try {
      parse(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("--rdzv-endpoint"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("accepted: HOST:PORT"), std::string::npos) << error.what();
    }
  }
}

TEST(Interfaces, AreChosenAsNcclDoes) {
  EXPECT_TRUE(chosen("eth", "eth0"));
  EXPECT_TRUE(chosen("eth,ib", "ib1"));
  EXPECT_FALSE(chosen("eth,ib", "lo"));
  EXPECT_TRUE(chosen("=eth0,eth1", "eth1"));
  EXPECT_FALSE(chosen("=eth0,eth1", "eth10"));
  EXPECT_FALSE(chosen("=eth", "eth0"));
  EXPECT_FALSE(chosen("^docker,lo", "docker0"));
  EXPECT_FALSE(chosen("^docker,lo", "lo"));
  EXPECT_TRUE(chosen("^docker,lo", "eth0"));
  EXPECT_FALSE(chosen("^=eth3", "eth3"));
  EXPECT_TRUE(chosen("^=eth3", "eth30"));
  EXPECT_FALSE(chosen("", "eth0"));
  EXPECT_FALSE(chosen(",", "eth0"));
}

TEST(Interfaces, HaveTheLoopback) {
  const auto all = interfaces();
  const auto lo =
      std::find_if(all.begin(), all.end(), [](const auto& one) { return one.address == "127.0.0.1"; });
  ASSERT_NE(lo, all.end());
  EXPECT_TRUE(lo->loopback);
}

// The variables of one test, gone afterwards.
class OwnAddress : public ::testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* name : {"LOCKSTEP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"})
      ::unsetenv(name);
  }
};

TEST_F(OwnAddress, OfThisMachineIsWhatTheNameSays) {
  EXPECT_EQ(own_address({"127.0.0.1", 1}), "127.0.0.1");
  EXPECT_EQ(own_address({"127.0.0.7", 1}), "127.0.0.7");
  EXPECT_TRUE(is_loopback(own_address({"localhost", 1})));
}

TEST_F(OwnAddress, FollowsTheChoice) {
  ::setenv("GLOO_SOCKET_IFNAME", "nonesuch", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  EXPECT_EQ(own_address({"192.0.2.1", 1}), "127.0.0.1");
  ::setenv("LOCKSTEP_SOCKET_IFNAME", "nonesuch", 1);
  try {
    own_address({"192.0.2.1", 1});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("LOCKSTEP_SOCKET_IFNAME='nonesuch'"), std::string::npos) << message;
    EXPECT_NE(message.find("lo (127.0.0.1)"), std::string::npos) << message;
  }
  // A place to listen at is where the endpoint leads, whatever is chosen.
  EXPECT_EQ(listen_address({"127.0.0.1", 1}), "127.0.0.1");
}

TEST_F(OwnAddress, NeedsANameThatResolves) {
  EXPECT_THROW(own_address({"no-such-host.invalid", 1}), SystemError);
}

TEST(Loopback, IsRecognised) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"10.0.0.1", "::2", "fe80::1", "128.0.0.1", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(Loopback, IsRefusedAcrossMachines) {
  EXPECT_NO_THROW(refuse_loopback("10.0.0.2", {"node0", 29500}));
  try {
    refuse_loopback("127.0.1.1", {"node0", 29500});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    for (const char* part : {"127.0.1.1", "node0:29500", "LOCKSTEP_SOCKET_IFNAME"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::net
