// A channel between ranks that share no memory: TCP's, MPI's. Beside moving bytes it carries the group's
// rules: every message says which call it belongs to (a CallCard), so that ranks which called different
// things are told; a rank that gives up tells its peers why; and failure is sticky.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/agree/call_card.h"
#include "comm/call/rank_names.h"
#include "comm/channel/channel.h"
#include "lockstep/base/error.h"

namespace lockstep {

class WireChannel : public Channel {
 public:
  // Which messages: those of collectives, or send and recv, which are not numbered and keep to themselves.
  enum class Kind { collective, point_to_point };

  // The exchanges that follow belong to `call` (until the next begin); its timeout starts now. When the call
  // leaves its divisor to the others (kDivisorOfOthers), arriving cards tell it and `call.divisor` is set as
  // soon as one does; cards sent from then on carry it further.
  virtual void begin(Call& call, const CallCard& card, Kind kind) = 0;

  // exchange(): throws MismatchError when an arriving message belongs to another call or has another length,
  // PeerError for a peer that died or left, TimeoutError naming the ranks that are missing, and whatever a
  // peer gave up with. An Outgoing may name only bytes that no Incoming of the same exchange writes.

  // Makes `error` the group's failure unless it has one, and tells every peer, without waiting for any.
  // Every later exchange throws it.
  virtual void fail(const Error& error) noexcept = 0;
  // Throws the group's failure, if there is one.
  virtual void check() = 0;

  // A channel of its own for some of the ranks, in this order; collective over these, inside the call that was
  // begun, which has `timeout` for it. `group` is its name.
  virtual std::unique_ptr<WireChannel> among(const std::vector<int>& ranks, const std::string& group,
                                             std::chrono::milliseconds timeout) = 0;

  // What the ranks are called in messages. among() names those of its channel by itself; it is told when its
  // group is a part of the one that the user knows.
  const std::shared_ptr<Naming>& naming() const { return naming_; }

  // While this channel waits it also takes in the news of `whole`, and tells its ranks that it waits: the
  // group that this one is a part of, and which goes with it. For ranks whose call runs elsewhere than their
  // peers think.
  // Calls `idle`, too, several times a second, which tells `mates`, ranks of this channel, that it waits
  // here: those of them that wait for this rank leave it to this one to say so to people. Either may be null.
  virtual void watch(WireChannel* whole, std::function<void()> idle, std::vector<int> mates) = 0;

  // Tells every peer that this rank waits for these, wherever it does.
  virtual void tell_waits(const std::vector<int>& ranks) noexcept = 0;

  // Seconds a byte that the fastest of the large messages from this rank took to arrive once it had begun,
  // since forget_observed(); 0: none came. The fastest, because a busy core makes others slow on any link.
  virtual double observed_s_per_byte(int rank) const = 0;
  virtual void forget_observed() = 0;

  // Takes in the news for a moment and throws what they mean: for a rank that sees a consequence elsewhere
  // and would rather name the reason.
  virtual void catch_up() = 0;

  // "joined", "left" or "dead", as far as this rank knows.
  virtual std::string peer_state(int rank) const = 0;

 protected:
  explicit WireChannel(RankNames names) : naming_(std::make_shared<Naming>(std::move(names))) {}
  RankNames names() const { return naming_->get(); }

 private:
  std::shared_ptr<Naming> naming_;
};

}  // namespace lockstep
