// What the tests of the room share: connected pairs, whole transfers, and strangers with a plain socket.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/fd.h"
#include "net/gate.h"

namespace lockstep::net {

inline Deadline in(std::chrono::milliseconds span) { return Deadline::after(span); }
inline Deadline soon() { return in(std::chrono::seconds(20)); }

// The name of a test's parameter.
std::string security_name(const ::testing::TestParamInfo<Security>& info);

GateOptions loopback_gate(const Secret& secret, Security security);

// Both ends of one connection, made through a gate.
struct Pair {
  std::unique_ptr<Stream> gate;
  std::unique_ptr<Stream> dialler;
};
Pair connected(Security security);

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed);
Bytes bytes_of(std::string_view text);

// Whole transfers; both at once on one stream, by turns.
void send_all(Stream& stream, Bytes bytes);
std::vector<std::byte> receive_all(Stream& stream, std::size_t count);
std::vector<std::byte> exchange(Stream& stream, Bytes out, std::size_t incoming);

// Sends "ping" one way and reads it at the other end: the connection works.
bool works(Stream& a, Stream& b);

// Somebody with a TCP socket and no secret.
class Stranger {
 public:
  explicit Stranger(const Endpoint& gate);
  int fd() const { return socket_.get(); }
  void send(std::string_view bytes) const;  // as far as the gate still takes it
  // Everything that comes until the gate closes the connection or the time is over.
  struct Heard {
    std::string bytes;
    bool closed = false;
  };
  Heard listen(std::chrono::milliseconds span) const;

 private:
  UniqueFd socket_;
};

// Between a dialler and a gate: passes one connection on and keeps what the dialler said.
class Relay {
 public:
  explicit Relay(const Endpoint& gate);
  ~Relay();
  Endpoint endpoint() const { return endpoint_; }
  std::string finish();  // waits for the dialler to hang up; what it said
 private:
  void run();
  bool pass_on();  // until the dialler hangs up (true) or the gate
  Endpoint gate_;
  UniqueFd door_;
  Endpoint endpoint_;
  std::string said_;
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace lockstep::net
