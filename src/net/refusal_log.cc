#include "net/refusal_log.h"

#include "lockstep/base/log.h"

namespace lockstep::net {

void RefusalLog::note(const Endpoint& gate, const std::string& peer, const std::string& why) {
  const auto now = Clock::now();
  if (now < next_) {
    ++unsaid_;
    return;
  }
  next_ = now + std::chrono::seconds(1);
  const std::string more = unsaid_ == 0 ? "" : " (and " + std::to_string(unsaid_) + " others before)";
  unsaid_ = 0;
  log().info("gate at {}: turned {} away: {}{}", gate.text(), peer, why, more);
}

}  // namespace lockstep::net
