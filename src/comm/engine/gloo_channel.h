// The channel over Gloo's messages, so that our algorithms, and with them canonical sums, run over Gloo. The
// ranks have met before (Engine::open): lengths agree, and a message carries nothing but its bytes.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/channel/channel.h"
#include "lockstep/base/clock.h"

namespace gloo {
class Context;
}

namespace lockstep {

class GlooChannel final : public Channel {
 public:
  explicit GlooChannel(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  int rank() const override;
  int size() const override;

  // The exchanges that follow have so long.
  void begin(std::chrono::milliseconds timeout) { deadline_ = Deadline::after(timeout); }

  // Throws Gloo's own exceptions.
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                const kernel::Reduction& reduction) override;
  // One message of send and recv, apart from what collectives send.
  void send(int to, std::span<const std::byte> bytes);
  void recv(int from, std::span<std::byte> bytes);

 private:
  std::chrono::milliseconds left() const;

  std::shared_ptr<gloo::Context> context_;
  Deadline deadline_ = Deadline::never();
  std::vector<std::byte> room_;  // for what is to be folded
};

}  // namespace lockstep
