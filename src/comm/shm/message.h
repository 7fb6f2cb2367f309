// One message with file descriptors over a Unix socket of packets.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::shm {

// At most this many descriptors travel with a message: the kernel's limit is 253.
inline constexpr std::size_t kMostDescriptors = 253;

// False when the peer is gone. Waits while peers have yet to take so many descriptors that the kernel lets no
// more be on their way.
bool send_message(int socket, const void* data, std::size_t bytes, const std::vector<int>& fds);

struct Received {
  std::size_t bytes = 0;  // 0 when the peer is gone; one more than asked for when there was no room for all
  bool lost_fds = false;  // descriptors came that this process has no room for (its limit of open files)
};

// Waits for one message. Throws nothing.
Received receive_message(int socket, void* data, std::size_t bytes, std::vector<UniqueFd>& fds);

}  // namespace lockstep::shm
