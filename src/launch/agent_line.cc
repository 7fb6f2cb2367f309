#include "launch/agent_line.h"

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {

std::optional<AgentMail> AgentLine::next() {
  const auto text = reader_.poll(*stream_);
  return text ? std::optional(read_mail(*text)) : std::nullopt;
}

void AgentLine::send(const AgentMail& mail) {
  // The connection's buffers hold many such messages: waiting here means that the peer has stopped reading.
  constexpr auto patience = std::chrono::seconds(net::kSilenceSeconds);
  try {
    net::send_mail(*stream_, write_mail(mail), Deadline::after(patience));
  } catch (const TimeoutError&) {
    throw net::ConnectionLost{"takes no message"};
  }
}

}  // namespace lockstep::launcher
