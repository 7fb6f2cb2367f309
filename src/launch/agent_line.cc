#include "launch/agent_line.h"

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {

std::optional<AgentMail> AgentLine::next() {
  for (;;) {
    const auto text = reader_.poll(*stream_);
    if (!text) return std::nullopt;
    AgentMail mail = read_mail(*text);
    quiet_.heard(Clock::now());
    paused_ = std::holds_alternative<Paused>(mail);
    if (!paused_ && !std::holds_alternative<Alive>(mail)) return mail;
  }
}

void AgentLine::beat() {
  if (paused_) return;  // it does not read: they would pile up
  try {
    send(Alive{});
  } catch (const net::ConnectionLost&) {
    // The peer may have said why before.
  }
}

void AgentLine::check_quiet() {
  const auto now = Clock::now();
  if (paused_)
    quiet_.heard(now);
  else
    quiet_.pass(now);
  if (quiet_.so_far() >= std::chrono::seconds(net::kSilenceSeconds))
    throw net::ConnectionLost{"does not answer for " + std::to_string(quiet_.so_far().count()) + " s"};
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
