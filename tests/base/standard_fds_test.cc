#include "lockstep/base/standard_fds.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

bool is_null_device(int fd) {
  struct stat here {};
  struct stat null {};
  return ::fstat(fd, &here) == 0 && ::stat("/dev/null", &null) == 0 && S_ISCHR(here.st_mode) &&
         here.st_rdev == null.st_rdev;
}

TEST(StandardDescriptors, ClosedOnesAreOpenedAndOthersLeftAlone) {
  for (int closed = 0; closed < 8; ++closed) {  // a bit for each of 0, 1 and 2
    const pid_t child = ::fork();
    if (child == 0) {
      const int file = ::open("/", O_RDONLY | O_DIRECTORY);
      for (int fd = 0; fd <= 2; ++fd) ::dup2(file, fd);
      for (int fd = 0; fd <= 2; ++fd)
        if ((closed >> fd & 1) != 0) ::close(fd);
      const int before = ::fcntl(file, F_DUPFD, 3);
      ::close(before);
      open_standard_descriptors();
      for (int fd = 0; fd <= 2; ++fd)
        if (is_null_device(fd) != ((closed >> fd & 1) != 0)) ::_exit(1 + fd);
      ::_exit(::fcntl(file, F_DUPFD, 3) == before ? 0 : 9);  // nothing else was opened
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "closed: " << closed;
  }
}

}  // namespace
}  // namespace lockstep
