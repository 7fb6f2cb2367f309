// A port of 127.0.0.1 that is free and stays so: below those that the system hands out by itself, so that
// only somebody who asks for just this one takes it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "lockstep/base/fd.h"

namespace lockstep {

inline std::uint16_t free_port() {
  static std::atomic<unsigned> next = static_cast<unsigned>(::getpid()) * 7919u;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto port = static_cast<std::uint16_t>(12'000 + next++ % 18'000);
    here.sin_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) == 0) return port;
  }
  throw std::runtime_error("no port");
}

}  // namespace lockstep
