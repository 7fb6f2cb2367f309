#include "comm/shm/door.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/fnv.h"

namespace lockstep::shm {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

// Doors are told apart by a hash, users by their number.
Address address_of(const std::string& door) {
  char text[64];
  std::snprintf(text, sizeof text, "lockstep/%u/%016llx", static_cast<unsigned>(::getuid()),
                static_cast<unsigned long long>(fnv1a(door)));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text, std::strlen(text));  // a leading zero: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(text));
  return address;
}

// Where the listener's queue is full, connect waits: not for ever.
UniqueFd try_connect(const Address& address) {
  UniqueFd socket = new_socket();
  const timeval patience{0, 100'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
  if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
    throw SystemError("cannot connect to rank 0", errno);
  return {};
}

[[noreturn]] void throw_stolen(int socket) {
  const std::optional<uid_t> who = peer_uid(socket);
  throw SystemError("the rendezvous name of this job is taken by uid " +
                    (who ? std::to_string(*who) : std::string("unknown")) + ", another user than uid " +
                    std::to_string(::getuid()) +
                    " of this worker; start it with lockstep run, or with LOCKSTEP_SECRET_FILE, where the "
                    "name can't be guessed");
}

// The name is taken: by a rank 0 of ours (perhaps just about to listen), or by somebody else.
[[noreturn]] void throw_taken(const std::string& job, const Address& address) {
  const Deadline patience = Deadline::after(std::chrono::seconds(1));
  do {
    const UniqueFd socket = try_connect(address);
    if (socket && !same_user(socket.get())) throw_stolen(socket.get());
    if (socket)
      throw UsageError("another process is already rank 0 of this job ('" + job +
                       "'): two workers have the same rank, or another run uses the same job name");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (!patience.passed());
  throw SystemError(
      "the rendezvous name of this job is taken by a process that does not answer, perhaps another user's; "
      "start it with lockstep run, or with LOCKSTEP_SECRET_FILE, where the name can't be guessed");
}

}  // namespace

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw SystemError("cannot make a Unix socket", errno);
  return fd;
}

std::optional<uid_t> peer_uid(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return std::nullopt;
  return who.uid;
}

bool same_user(int socket) { return peer_uid(socket) == std::optional<uid_t>(::getuid()); }

UniqueFd listen_at(const std::string& door, const std::string& job, int most_waiting) {
  UniqueFd listener = new_socket();
  const Address address = address_of(door);
  if (::bind(listener.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) throw_taken(job, address);
    throw SystemError("cannot bind the rendezvous socket", errno);
  }
  if (::listen(listener.get(), most_waiting) != 0)
    throw SystemError("cannot listen on the rendezvous socket", errno);
  return listener;
}

std::optional<UniqueFd> knock_at(const std::string& door, const Deadline& deadline,
                                 const std::function<void()>& between) {
  const Address address = address_of(door);
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    if (UniqueFd socket = try_connect(address)) {
      if (!same_user(socket.get())) throw_stolen(socket.get());
      return socket;
    }
    if (deadline.passed()) return std::nullopt;
    if (between) between();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
}

}  // namespace lockstep::shm
