#include "data/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep {

std::string shown(const std::filesystem::path& path) {
  std::string text = "'";
  for (const char c : path.string()) text += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return text + "'";
}

std::vector<std::uint8_t> read_whole_file(const std::filesystem::path& file, std::int64_t most,
                                          const std::string& accepted) {
  // Without O_NONBLOCK a named pipe in place of the file would make us wait for ever.
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) throw UsageError("no file " + shown(file) + "; accepted: " + accepted);
  if (!fd) throw SystemError("cannot open " + shown(file), errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw SystemError("cannot read " + shown(file), errno);
  if (!S_ISREG(status.st_mode)) throw UsageError(shown(file) + " is no plain file; accepted: " + accepted);
  if (status.st_size > most)
    throw UsageError(shown(file) + " has " + std::to_string(status.st_size) +
                     " bytes; accepted: " + accepted);

  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError("cannot read " + shown(file), errno);
    if (got == 0) break;  // it shrank under our hands: what is there is judged by the caller
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace lockstep
