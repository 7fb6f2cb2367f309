#include "net/tools.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "lockstep/base/random.h"
#include "net/socket.h"

namespace lockstep::net {

std::string security_name(const ::testing::TestParamInfo<Security>& info) {
  return info.param == Security::tls ? "tls" : "plaintext";
}

GateOptions loopback_gate(const Secret& secret, Security security) {
  return {.address = "127.0.0.1", .secret = secret, .security = security};
}

Pair connected(Security security) {
  const Secret secret = Secret::make();
  Gate gate(loopback_gate(secret, security));
  Pair pair;
  pair.dialler = dial(gate.endpoint(), secret, security, "pair", soon());
  pair.gate = gate.wait_for("pair", soon());
  return pair;
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  RandomStream random(seed, 0, 0);
  std::vector<std::byte> bytes(count);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t some = random.next();
    std::memcpy(bytes.data() + at, &some, std::min(sizeof(some), count - at));
  }
  return bytes;
}

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

void send_all(Stream& stream, Bytes bytes) {
  while (!bytes.empty()) {
    const std::array<Bytes, 1> parts = {bytes};
    const std::size_t sent = stream.write(parts);
    bytes = bytes.subspan(sent);
    if (sent == 0 && !wait_ready(stream.fd(), POLLOUT, soon())) throw std::runtime_error("can't send");
  }
}

std::vector<std::byte> receive_all(Stream& stream, std::size_t count) { return exchange(stream, {}, count); }

std::vector<std::byte> exchange(Stream& stream, Bytes out, std::size_t incoming) {
  std::vector<std::byte> received(incoming);
  std::size_t got = 0;
  while (!out.empty() || got < incoming) {
    const std::array<Bytes, 1> parts = {out};
    const std::size_t sent = out.empty() ? 0 : stream.write(parts);
    out = out.subspan(sent);
    const std::size_t read = stream.read(std::span(received).subspan(got));
    got += read;
    if (sent != 0 || read != 0 || stream.pending()) continue;
    const short events = static_cast<short>((out.empty() ? 0 : POLLOUT) | (got < incoming ? POLLIN : 0));
    if (events != 0 && !wait_ready(stream.fd(), events, soon())) throw std::runtime_error("nothing moves");
  }
  return received;
}

bool works(Stream& a, Stream& b) {
  const Bytes ping = bytes_of("ping");
  send_all(a, ping);
  const auto got = receive_all(b, ping.size());
  return std::equal(got.begin(), got.end(), ping.begin(), ping.end());
}

Stranger::Stranger(const Endpoint& gate) : socket_(make_socket(AF_INET)) {
  const SocketAddress to = resolve(gate.host, gate.port, Lookup::numbers).front();
  ::connect(socket_.get(), to.get(), to.length);
  if (!wait_ready(socket_.get(), POLLOUT, soon())) throw std::runtime_error("can't connect to the gate");
}

void Stranger::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

Stranger::Heard Stranger::listen(std::chrono::milliseconds span) const {
  Heard heard;
  const Deadline deadline = in(span);
  while (wait_ready(socket_.get(), POLLIN, deadline)) {
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) continue;
    if (got <= 0) {  // an end or a reset
      heard.closed = true;
      break;
    }
    heard.bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return heard;
}

struct Relay::Thread {
  std::jthread thread;
};

Relay::Relay(const Endpoint& gate) : gate_(gate), door_(make_socket(AF_INET)) {
  const SocketAddress any = resolve("127.0.0.1", 0, Lookup::numbers).front();
  if (::bind(door_.get(), any.get(), any.length) != 0 || ::listen(door_.get(), 1) != 0)
    throw std::runtime_error("the relay can't listen");
  endpoint_ = {"127.0.0.1", local_end(door_.get()).port()};
  thread_ = std::make_unique<Thread>();
  thread_->thread = std::jthread([this] { run(); });
}

Relay::~Relay() = default;

std::string Relay::finish() {
  thread_->thread.join();
  return said_;
}

void Relay::run() {
  while (wait_ready(door_.get(), POLLIN, soon())) {
    said_.clear();
    if (pass_on()) return;  // else the gate lost its patience, and the dialler comes again
  }
}

bool Relay::pass_on() {
  const UniqueFd dialler(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const Stranger gate(gate_);
  std::array<pollfd, 2> both = {pollfd{dialler.get(), POLLIN, 0}, pollfd{gate.fd(), POLLIN, 0}};
  while (::poll(both.data(), both.size(), 20'000) > 0) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}}) {
      if (both[from].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t got = ::recv(both[from].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) return from == 0;
      ::send(both[1 - from].fd, buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
      if (from == 0) said_.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }
  return true;
}

}  // namespace lockstep::net
