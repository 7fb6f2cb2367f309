// Threads of the library's own.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

// "cannot start <thread>: …". For a lack of memory and for too many processes the system has one number,
// whose name ("Resource temporarily unavailable") says neither.
inline std::string no_thread(const std::string& thread, const std::system_error& refused) {
  const bool either = refused.code() == std::errc::resource_unavailable_try_again;
  return "cannot start " + thread + ": " +
         (either
              ? "not enough memory for its stack, or too many processes (ulimit -u, or a container's limit)"
              : refused.code().message());
}

// One to which no signal is delivered: they are the business of the program's own threads. Throws
// SystemError.
inline std::thread start_thread(const std::string& thread, std::function<void()> work) {
  const class Blocked {
   public:
    Blocked() {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    sigset_t before_;
  } blocked;
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& refused) {
    throw SystemError(no_thread(thread, refused));
  }
}

}  // namespace lockstep
