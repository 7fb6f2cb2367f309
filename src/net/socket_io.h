// Moving bytes through a socket without waiting and without SIGPIPE.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "net/stream.h"

namespace lockstep::net {

// What became of the connection, as ConnectionLost words it.
std::string reason_of(int error_number);

// How many bytes were moved; 0 means wait (or that nothing was asked for). Throw ConnectionLost.
std::size_t receive(int socket, std::span<std::byte> into);
std::size_t receive(int socket, std::span<std::byte> into, std::span<std::byte> then);
std::size_t transmit(int socket, Bytes bytes);

}  // namespace lockstep::net
