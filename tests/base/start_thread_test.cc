// Threads of the library's own, also where the system has none.
#include "base/start_thread.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {
std::atomic<bool> threads_are_refused = false;
}  // namespace

// In place of the C library's, for this whole program.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*),
                              void* argument) noexcept {
  if (threads_are_refused) return EAGAIN;
  const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, how, body, argument);
}

namespace lockstep {
namespace {

bool hears(int signal) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return ::sigismember(&blocked, signal) == 0;
}

TEST(StartThread, LeavesTheProgramItsSignals) {
  bool heard = true;
  start_thread("a thread", [&] { heard = hears(SIGTERM); }).join();
  EXPECT_FALSE(heard);
  EXPECT_TRUE(hears(SIGTERM));
}

TEST(StartThread, OneThatCannotBeStartedLeavesThemToo) {
  threads_are_refused = true;
  std::string said;
  try {
    start_thread("the thread that waits", [] {}).join();
  } catch (const SystemError& error) {
    said = error.what();
  }
  threads_are_refused = false;
  EXPECT_EQ(said,
            "cannot start the thread that waits: not enough memory for its stack, or too many processes "
            "(ulimit -u, or a container's limit)");
  EXPECT_TRUE(hears(SIGTERM));
}

}  // namespace
}  // namespace lockstep
