// A tiny process that outlives a killed launcher just long enough to end the workers.
#pragma once

#include <sys/types.h>

#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

// Kills, with SIGKILL, every process whose initial environment holds `mark` ("LOCKSTEP_AGENT=…"), until
// none is left. Catches those that left their worker's process group. Async-signal-safe.
void kill_marked(const char* mark);

// Holds one end of a pipe to the launcher. When the launcher is gone without a word, the guardian kills
// the process groups it was told of and everything marked, and exits.
class Guardian {
 public:
  // Returns once it is on its own: what ends the launcher, an outer job's end too, no longer reaches it. So
  // no worker is ever without one. Throws SystemError.
  explicit Guardian(const std::string& mark);
  ~Guardian();  // the job is over: it exits without killing anything
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(pid_t process_group);
  // Waits for the leader of a group that is watched and whose processes were killed. Workers are reaped here
  // and nowhere else: once that is done their number may be a stranger's, so the guardian forgets it first.
  void reap(pid_t leader);

  pid_t pid() const { return pid_; }

 private:
  void tell(pid_t word);

  pid_t pid_ = -1;
  UniqueFd to_guardian_;
};

}  // namespace lockstep::launcher
