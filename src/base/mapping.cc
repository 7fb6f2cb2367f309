#include "lockstep/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {

Mapping::Mapping(int fd, std::size_t bytes) : bytes_(bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) throw SystemError("cannot map " + format_bytes(bytes) + " of shared memory", errno);
  data_ = static_cast<std::byte*>(at);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace lockstep
