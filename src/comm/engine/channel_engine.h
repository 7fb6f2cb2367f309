// Our algorithms over a channel between ranks that share no memory: TCP's, MPI's. The ranks don't meet before
// a call; its messages carry what was called (comm/agree/call_card.h), and every rank picks the algorithm
// alone, from the same table.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/call/engine.h"
#include "comm/channel/wire_channel.h"
#include "comm/tune/links.h"
#include "comm/tune/selector.h"

namespace lockstep {

// What our algorithms can do for ranks on `nodes` that share no memory.
Capabilities channel_capabilities(const std::vector<int>& nodes);

class ChannelEngine : public Engine, public Composable {
 public:
  // `name`: the engine's; `nodes[r]`: rank r's node; `selector`: the table that picks algorithms.
  ChannelEngine(std::string name, std::unique_ptr<WireChannel> channel, std::string group,
                std::vector<int> nodes, Selector selector);

  CommMemory allocate(std::size_t bytes, Device device) override;
  bool reaches(const void* /*data*/) const override { return false; }
  double expected_seconds(const Call& call) const override;
  PeerView peer(int rank) const override { return {.state = channel_->peer_state(rank)}; }
  void tell_failure(const Error& error) noexcept override { channel_->fail(error); }
  void check(News news) override { news == News::known ? channel_->check() : channel_->catch_up(); }
  Composable* composable() override { return this; }

  void announce(const Call& call) override;
  void watch(Composable* whole, std::function<void()> idle) override;
  void tell_waits(const std::vector<int>& ranks) noexcept override { channel_->tell_waits(ranks); }
  void share_links(int ranks) override;
  Commons* commons() override { return nullptr; }

  // Measures the links between the nodes of this group and lets choices and routes follow them. Collective;
  // all of it has `timeout`.
  void measure_links(std::chrono::milliseconds timeout);
  void set_links(std::shared_ptr<Links> links);
  std::shared_ptr<const Links> links() const { return links_; }

  WireChannel& channel() { return *channel_; }

 protected:
  void execute(const Call& call) override;
  double meet(const Call& call) override;
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override;
  // The call as the channel's messages belong to it from now on, until the next; it learns its divisor on the
  // way.
  Call& begin(const Call& call, std::string_view forced, WireChannel::Kind kind);
  // A sub-group's, over its channel; what split() makes.
  virtual std::unique_ptr<ChannelEngine> over(std::unique_ptr<WireChannel> channel, std::string group,
                                              std::vector<int> nodes);

 private:
  CallShape shape_of(const Call& call) const;
  void watch_links(const Call& call);
  Stage stage_for(const Call& call);
  void exchange_nothing(const Call& call);

  std::unique_ptr<WireChannel> channel_;
  std::string group_;
  Selector selector_;
  std::shared_ptr<Links> links_;          // null: not measured
  std::shared_ptr<const Routes> routes_;  // with links
  std::uint64_t calls_ = 0;               // collectives since the links were last looked at
  std::uint64_t look_after_ = 64;         // grows when looking found nothing new
  Scratch scratch_;
  Call begun_;
  Call announced_;
};

}  // namespace lockstep
