// A process of another user that holds a lock, where this one may become another user.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

namespace lockstep::test {

// What whoever may read a file or list a folder can do to it.
enum class StrangersWay { flock, read_lock };

class StrangersLock {
 public:
  static constexpr uid_t kUid = 65534;

  StrangersLock(const std::filesystem::path& path, StrangersWay way) {
    int pipes[2] = {-1, -1};
    EXPECT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      struct flock whole {};
      whole.l_type = F_RDLCK;
      const int fd = ::setresuid(kUid, kUid, kUid) == 0 ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1;
      const bool held = fd >= 0 && (way == StrangersWay::flock ? ::flock(fd, LOCK_EX | LOCK_NB)
                                                               : ::fcntl(fd, F_OFD_SETLK, &whole)) == 0;
      if (held) (void)!::write(pipes[1], "x", 1);
      ::close(pipes[1]);
      for (;;) ::pause();
    }
    ::close(pipes[1]);
    char byte = 0;
    EXPECT_EQ(::read(pipes[0], &byte, 1), 1) << "it could not lock " << path;
    ::close(pipes[0]);
  }
  ~StrangersLock() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StrangersLock(const StrangersLock&) = delete;
  StrangersLock& operator=(const StrangersLock&) = delete;

 private:
  pid_t pid_ = -1;
};

}  // namespace lockstep::test
