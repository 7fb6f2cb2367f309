// Says who was turned away at a gate, at most a line a second: strangers can't fill the log.
#pragma once

#include <string>

#include "lockstep/base/clock.h"
#include "net/address.h"

namespace lockstep::net {

class RefusalLog {
 public:
  void note(const Endpoint& gate, const std::string& peer, const std::string& why);

 private:
  Clock::time_point next_{};
  long unsaid_ = 0;
};

}  // namespace lockstep::net
