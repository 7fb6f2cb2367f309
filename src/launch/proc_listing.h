// Reading a folder of /proc after a fork, when opendir() may not be called.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep::launcher {

// Calls `take(number, folder's descriptor)` for every entry of `folder` whose name is a number. False when
// the folder can't be read. Async-signal-safe when `take` is.
template <class Take>
bool for_each_number(const char* folder, Take take) {
  struct Entry {  // the kernel's linux_dirent64
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t length;
    std::uint8_t type;
    char name[1];
  };
  const int fd = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  alignas(Entry) char block[16384];
  long got = 0;
  while ((got = ::syscall(SYS_getdents64, fd, block, sizeof block)) > 0) {
    for (long at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const Entry*>(block + at);
      at += entry->length;
      int number = 0;
      const char* c = entry->name;
      for (; *c >= '0' && *c <= '9'; ++c) number = number * 10 + (*c - '0');
      if (c != entry->name && *c == '\0') take(number, fd);
    }
  }
  ::close(fd);
  return got == 0;
}

}  // namespace lockstep::launcher
