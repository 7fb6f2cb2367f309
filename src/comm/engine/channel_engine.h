// Our algorithms over a channel between ranks that share no memory: TCP's, MPI's. The ranks don't meet before
// a call; its messages carry what was called (comm/call_card.h), and every rank picks the algorithm alone,
// from the same table.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/channel/wire_channel.h"
#include "comm/engine/engine.h"
#include "comm/tune/links.h"
#include "comm/tune/selector.h"

namespace lockstep {

class ChannelEngine : public Engine {
 public:
  // `name`: the engine's, a constant; `nodes[r]`: rank r's node; `selector`: the table that picks algorithms.
  ChannelEngine(const char* name, std::unique_ptr<WireChannel> channel, std::string group,
                std::vector<int> nodes, Selector selector);

  const char* name() const override { return name_; }
  int rank() const override { return channel_->rank(); }
  int size() const override { return channel_->size(); }
  const std::vector<int>& nodes() const override { return nodes_; }
  std::string refuses(const Call& call) const override;
  std::vector<std::string> algorithms(Collective what) const override;
  void run(const Call& call) override;
  double open(const Call& call) override;
  CommMemory allocate(std::size_t bytes) override;
  std::unique_ptr<Engine> split(int colour, int key, const std::string& name, const Call& call) override;
  std::string peer_state(int rank) const override { return channel_->peer_state(rank); }
  Selector* selector() override { return &selector_; }
  double expected_seconds(const Call& call) const override;
  void fail(const Error& error) noexcept override { channel_->fail(error); }
  void share_links(int ranks) override;
  std::string topology() const override;
  void call_ranks(RankNames names) override { channel_->call_ranks(std::move(names)); }
  RankNames rank_names() const override { return channel_->rank_names(); }

  // Measures the links between the nodes of this group and lets choices and routes follow them. Collective.
  void measure_links();
  void set_links(std::shared_ptr<Links> links);
  std::shared_ptr<const Links> links() const { return links_; }

  void announce(const Call& call) override;
  void tell_waits(const std::vector<int>& ranks) noexcept override { channel_->tell_waits(ranks); }
  void catch_up() override { channel_->catch_up(); }
  bool watch(Engine* whole, std::function<void()> idle) override;

  WireChannel& channel() { return *channel_; }
  const std::string& group() const { return group_; }

 protected:
  // A sub-group's, over its channel; what split() makes.
  virtual std::unique_ptr<ChannelEngine> over(std::unique_ptr<WireChannel> channel, std::string group,
                                              std::vector<int> nodes);

 private:
  Shape shape_of(const Call& call) const;
  void watch_links(const Call& call);
  void meet(const Call& call);
  template <class Body>
  auto together(const Call& call, WireChannel::Kind kind, Body&& body);

  const char* name_;
  std::unique_ptr<WireChannel> channel_;
  std::string group_;
  std::vector<int> nodes_;
  Selector selector_;
  std::shared_ptr<Links> links_;          // null: not measured
  std::shared_ptr<const Routes> routes_;  // with links
  std::uint64_t calls_ = 0;               // collectives since the links were last looked at
  std::uint64_t look_after_ = 64;         // grows when looking found nothing new
  Scratch scratch_;
  Call announced_;
};

}  // namespace lockstep
