// One agent's end of the connection to another.
#pragma once

#include <memory>
#include <optional>

#include "launch/agent_mail.h"
#include "net/mail.h"
#include "net/stream.h"

namespace lockstep::launcher {

class AgentLine {
 public:
  explicit AgentLine(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {}

  int fd() const { return stream_->fd(); }
  const std::string& peer() const { return stream_->peer(); }
  // The next message, if a whole one is there. Throws net::ConnectionLost.
  std::optional<AgentMail> next();
  // Throws net::ConnectionLost, also when the peer takes nothing for some seconds.
  void send(const AgentMail& mail);

 private:
  std::unique_ptr<net::Stream> stream_;
  net::MailReader reader_;
};

}  // namespace lockstep::launcher
