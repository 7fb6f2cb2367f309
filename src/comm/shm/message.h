// One message with file descriptors over a Unix socket of packets.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::shm {

// At most this many descriptors travel with a message: the kernel's limit is 253.
inline constexpr std::size_t kMostDescriptors = 253;

// False when the peer is gone.
bool send_message(int socket, const void* data, std::size_t bytes, const std::vector<int>& fds);

// The size of the message, at most `bytes`; 0 when the peer is gone.
std::size_t receive_message(int socket, void* data, std::size_t bytes, std::vector<UniqueFd>& fds);

}  // namespace lockstep::shm
