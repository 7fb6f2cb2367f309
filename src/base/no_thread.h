// What is said when the system starts no thread.
#pragma once

#include <string>
#include <system_error>

namespace lockstep {

// "cannot start <thread>: …". For a lack of memory and for too many processes the system has one number,
// whose name ("Resource temporarily unavailable") says neither.
inline std::string no_thread(const std::string& thread, const std::system_error& refused) {
  const bool either = refused.code() == std::errc::resource_unavailable_try_again;
  return "cannot start " + thread + ": " +
         (either ? "not enough memory for its stack, or too many processes (ulimit -u)"
                 : refused.code().message());
}

}  // namespace lockstep
