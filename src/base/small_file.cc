#include "lockstep/base/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/fd.h"

namespace lockstep {

std::optional<std::string> read_small_file(const std::string& path, std::size_t most_bytes) {
  // Without O_NONBLOCK opening a pipe would wait for somebody to write into it.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string text;
  char block[16384];
  while (text.size() <= most_bytes) {
    const ssize_t got = ::read(fd.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(block, static_cast<std::size_t>(got));
  }
  return std::nullopt;  // it may still grow
}

}  // namespace lockstep
