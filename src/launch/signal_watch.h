// Signals to the launcher as something to read, while a job runs.
#pragma once

#include <signal.h>

#include <optional>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

// Holds back the signals that the launcher answers itself, and SIGPIPE, until destroyed. A signal that
// was ignored when the launcher started (nohup, a shell's background job) stays ignored, but for SIGCHLD.
class SignalWatch {
 public:
  SignalWatch();  // throws SystemError
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that came, if any.
  std::optional<int> next();
  // The mask as it was before: what a worker should have.
  const sigset_t& original() const { return original_; }

 private:
  sigset_t original_{};
  struct sigaction original_child_ {};
  UniqueFd fd_;
};

// By nohup, or a shell that started this process in the background.
bool is_ignored(int signal);

// Signals that end the job.
bool ends_job(int signal);

}  // namespace lockstep::launcher
