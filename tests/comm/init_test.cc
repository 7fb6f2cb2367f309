// What init() does to the process around it.
#include "lockstep/comm/init.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace lockstep {
namespace {

TEST(Init, KeepsItsOwnDescriptorsOffTheStandardOnes) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int fd = 0; fd <= 2; ++fd) ::close(fd);
    const Group world = init();
    std::error_code error;
    for (const char* const fd : {"0", "1", "2"})
      if (std::filesystem::read_symlink(std::string("/proc/self/fd/") + fd, error) != "/dev/null") ::_exit(1);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep
