#include "comm/shm/message.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/base/clock.h"

namespace lockstep::shm {

bool send_message(int socket, const void* data, std::size_t bytes, const std::vector<int>& fds) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<char> control(fds.empty() ? 0 : CMSG_SPACE(fds.size() * sizeof(int)));
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  const Deadline patience = Deadline::after(std::chrono::seconds(10));
  for (;;) {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
    if (sent >= 0 || (errno != EINTR && errno != ETOOMANYREFS)) break;
    if (errno != ETOOMANYREFS) continue;
    if (patience.passed()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return sent == static_cast<ssize_t>(bytes);
}

Received receive_message(int socket, void* data, std::size_t bytes, std::vector<UniqueFd>& fds) {
  iovec part{data, bytes};
  std::vector<char> control(CMSG_SPACE(kMostDescriptors * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return {};
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  const bool cut = (header.msg_flags & MSG_TRUNC) != 0;
  return {cut ? bytes + 1 : static_cast<std::size_t>(got), (header.msg_flags & MSG_CTRUNC) != 0};
}

}  // namespace lockstep::shm
