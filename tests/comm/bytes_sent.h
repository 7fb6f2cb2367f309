// How many bytes went over the wire.
#pragma once

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>

namespace lockstep::testing {

// What the kernel says that the TCP connections of this process have sent, payload alone.
inline std::uint64_t bytes_sent() {
  std::uint64_t bytes = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  while (const dirent* entry = ::readdir(folder)) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (::getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
      bytes += info.tcpi_bytes_acked;
  }
  ::closedir(folder);
  return bytes;
}

// Once the kernel has heard that all of it arrived, which an idle connection tells late.
inline std::uint64_t settled_bytes_sent() {
  std::uint64_t last = bytes_sent();
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::uint64_t now = bytes_sent();
    if (now == last) return now;
    last = now;
  }
}

}  // namespace lockstep::testing
