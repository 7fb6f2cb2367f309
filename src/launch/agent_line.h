// One agent's end of the connection to another.
#pragma once

#include <memory>
#include <optional>

#include "launch/agent_mail.h"
#include "launch/quiet.h"
#include "net/mail.h"
#include "net/stream.h"

namespace lockstep::launcher {

class AgentLine {
 public:
  explicit AgentLine(std::unique_ptr<net::Stream> stream) : stream_(std::move(stream)) {}

  int fd() const { return stream_->fd(); }
  const std::string& peer() const { return stream_->peer(); }
  // The next message, if a whole one is there; Alive and Paused are taken here. Throws net::ConnectionLost.
  std::optional<AgentMail> next();
  // Throws net::ConnectionLost, also when the peer takes nothing for some seconds.
  void send(const AgentMail& mail);
  // Both about once a second, when next() has nothing more. The first tells the peer that this agent runs; it
  // throws nothing: when the connection is over next() says so, after what came before.
  void beat();
  // Throws net::ConnectionLost when the peer was not heard of for kSilenceSeconds.
  void check_quiet();

 private:
  std::unique_ptr<net::Stream> stream_;
  net::MailReader reader_;
  Quiet quiet_;
  bool paused_ = false;  // the peer, by its own word
};

}  // namespace lockstep::launcher
