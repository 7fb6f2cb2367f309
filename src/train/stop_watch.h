// Signals that tell a run to stop.
#pragma once

namespace lockstep {

// While it lives the signals that stop a job (SIGINT, SIGTERM, SIGHUP: a terminal or a connection is gone,
// and SIGQUIT) are remembered, but for those that are ignored (nohup); another one, kOneStop
// (launch/launcher.h) later or more, ends the process. Of several at once, as of ranks that are threads, the
// first begins anew, and with the last the program's own handlers come back.
class StopWatch {
 public:
  StopWatch();
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;
};

// The signal that has come while this process trained; 0: none.
int noted_stop();

}  // namespace lockstep
