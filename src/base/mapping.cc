#include "lockstep/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Mapping::Mapping(int fd, std::size_t bytes) : bytes_(bytes) {
  const auto fail = [&] {
    throw SystemError("cannot map " + format_bytes(bytes) + " of shared memory", errno);
  };
  // Reserve a little more, then map at a huge page's boundary: otherwise no huge page can ever back it.
  const std::size_t room = bytes + kHugePage;
  void* const reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail();
  auto* const start = static_cast<std::byte*>(reserved);
  const std::size_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  void* const at =
      ::mmap(start + skip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, room);
    errno = error;
    fail();
  }
  if (skip > 0) ::munmap(start, skip);
  if (skip < kHugePage) {
    std::byte* const tail = start + skip + (bytes + 4095) / 4096 * 4096;
    ::munmap(tail, static_cast<std::size_t>(start + room - tail));
  }
  data_ = static_cast<std::byte*>(at);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace lockstep
