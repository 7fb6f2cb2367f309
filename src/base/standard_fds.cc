#include "lockstep/base/standard_fds.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {

void open_standard_descriptors() {
  for (int wanted = 0; wanted <= 2; ++wanted) {
    if (::fcntl(wanted, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is given, which is this one. Where there is no /dev/null any file keeps the
    // place.
    int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0) fd = ::open("/", O_RDONLY | O_DIRECTORY);
    if (fd > 2) ::close(fd);  // another thread was faster
  }
}

}  // namespace lockstep
