#include "launch/run_and_wait.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

}  // namespace

void become(std::vector<std::string> words) {
  ::execv(words[0].c_str(), pointers_to(words).data());
  throw SystemError("starting " + words[0], errno);
}

int run_and_wait(std::vector<std::string> words) {
  const std::vector<char*> argv = pointers_to(words);
  pid_t child = 0;
  if (const int error = ::posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), environ); error != 0)
    throw SystemError("starting " + words[0], error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw SystemError("waiting for " + words[0], errno);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace lockstep
