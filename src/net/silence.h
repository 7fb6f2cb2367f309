// Notices that the peer's machine has vanished while bytes are under way to it. Keepalive says nothing then,
// the kernel alone would try for a quarter of an hour, and TCP_USER_TIMEOUT would also end connections whose
// peer is well and merely does not read for a while.
#pragma once

#include "lockstep/base/clock.h"

namespace lockstep::net {

class SilenceWatch {
 public:
  // To be called when there was nothing to read or no room to write. Asks the kernel about once a second, and
  // throws ConnectionLost when packets have gone unanswered for kSilenceSeconds.
  void check(int socket) {
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(900);
    ask(socket);
  }

 private:
  static void ask(int socket);
  Clock::time_point next_ = Clock::now() + std::chrono::seconds(1);
};

}  // namespace lockstep::net
