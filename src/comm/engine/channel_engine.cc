#include "comm/engine/channel_engine.h"

#include <algorithm>
#include <new>

#include "comm/algo/team.h"
#include "comm/engine/offers.h"
#include "comm/engine/vendor.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

struct Choice {
  std::int64_t colour;
  std::int64_t key;
};

}  // namespace

ChannelEngine::ChannelEngine(std::string name, std::unique_ptr<WireChannel> channel, std::string group,
                             std::vector<int> nodes, Selector selector)
    : Engine({.name = std::move(name),
              .rank = channel->rank(),
              .nodes = nodes,
              .naming = channel->naming(),
              .can = channel_capabilities(nodes),
              .selector = &selector_}),
      channel_(std::move(channel)),
      group_(std::move(group)),
      selector_(std::move(selector)) {}

Capabilities channel_capabilities(const std::vector<int>& nodes) {
  return {.offers = our_offers(nodes, false)};
}

CallShape ChannelEngine::shape_of(const Call& call) const {
  return {.what = call.what, .ranks = size(), .bytes = call.bytes(), .messages_only = true, .nodes = nodes()};
}

Stage ChannelEngine::stage_for(const Call& call) {
  return {.call = call,
          .me = rank(),
          .nodes = nodes(),
          .scratch = scratch_,
          .routes = routes_.get(),
          .messages = channel_.get()};
}

Call& ChannelEngine::begin(const Call& call, std::string_view forced, WireChannel::Kind kind) {
  begun_ = call;
  channel_->begin(begun_, card_of(call, forced), kind);
  return begun_;
}

void ChannelEngine::execute(const Call& call) {
  if (is_message(call.what)) {
    begin(call, selector_.forced(), WireChannel::Kind::point_to_point).running("message");
    Team team = Team::whole(*channel_);
    if (call.what == Collective::send)
      return team.send(call.root, std::span(static_cast<const std::byte*>(call.in), call.bytes()), {});
    return team.recv(call.root, std::span(static_cast<std::byte*>(call.out), call.bytes()), Arrival::store,
                     {});
  }
  const Algorithm* const algorithm =
      call.algorithm.empty() ? selector_.choose(shape_of(call), call.order) : find_algorithm(call.algorithm);
  Call& told = begin(call, selector_.forced(), WireChannel::Kind::collective);
  told.running(algorithm->name());
  if (call.count == 0 && call.what != Collective::barrier) {
    exchange_nothing(told);
  } else {
    Stage stage = stage_for(told);
    algorithm->run(stage);
  }
  if (links_ != nullptr && size() > 1 && ++calls_ >= look_after_) watch_links(call);
}

double ChannelEngine::meet(const Call& call) {
  Call& told = begin(call, selector_.forced(), WireChannel::Kind::collective);
  exchange_nothing(told);
  return told.divisor;
}

// Nothing to move, but peers that have something must learn of it.
void ChannelEngine::exchange_nothing(const Call& call) {
  Call barrier = call;
  barrier.what = Collective::barrier;
  barrier.count = 0;
  Stage stage = stage_for(barrier);
  selector_.choose(shape_of(barrier), Order::canonical)->run(stage);
}

void ChannelEngine::announce(const Call& call) {
  channel_->check();
  announced_ = call;
  channel_->begin(announced_, card_of(call, selector_.forced()), WireChannel::Kind::collective);
}

void ChannelEngine::watch(Composable* whole, std::function<void()> idle) {
  auto* const other = dynamic_cast<ChannelEngine*>(whole);
  std::vector<int> mates;
  const int here = nodes()[static_cast<std::size_t>(rank())];
  for (int r = 0; idle && r < size(); ++r)
    if (r != rank() && nodes()[static_cast<std::size_t>(r)] == here) mates.push_back(r);
  channel_->watch(other == nullptr ? nullptr : other->channel_.get(), std::move(idle), std::move(mates));
}

double ChannelEngine::expected_seconds(const Call& call) const {
  const Algorithm* const algorithm =
      call.algorithm.empty() ? selector_.choose(shape_of(call), call.order) : find_algorithm(call.algorithm);
  return algorithm == nullptr ? 0 : selector_.expect(*algorithm, shape_of(call));
}

CommMemory ChannelEngine::allocate(std::size_t bytes, Device) { return private_memory(bytes); }

void ChannelEngine::measure_links(std::chrono::milliseconds timeout) {
  if (size() > 1) set_links(lockstep::measure_links(*this, *channel_, timeout));
}

void ChannelEngine::set_links(std::shared_ptr<Links> links) {
  links_ = std::move(links);
  std::vector<std::string> reasons;
  routes_ = std::make_shared<Routes>(links_->routes(&reasons));
  selector_.set_links(links_, routes_);
  if (rank() != 0) return;
  for (const std::string& reason : reasons) log().info("group {}: {}", group_, reason);
}

// What the ranks saw of their links against the table. All count the same calls, so all look at the same
// time.
void ChannelEngine::watch_links(const Call& call) {
  constexpr double kChanged = 1.5;
  constexpr double kBytes = 1 << 20;
  calls_ = 0;
  double worst = 1;
  for (int r = 0; r < size(); ++r) {
    const double seen = channel_->observed_s_per_byte(r);
    if (seen == 0 || r == rank()) continue;
    const double known = (links_->seconds(r, rank(), kBytes) - links_->seconds(r, rank(), 0)) / kBytes;
    worst = std::max(worst, std::max(seen / known, known / seen));
  }
  channel_->forget_observed();
  Call agree;
  agree.what = Collective::all_reduce;
  agree.in = &worst;
  agree.out = &worst;
  agree.count = 1;
  agree.dtype = DType::f64;
  agree.op = ReduceOp::max;
  agree.timeout = call.timeout;
  run(agree);
  if (worst <= kChanged) return;
  const std::shared_ptr<Links> before = links_;
  // All groups that share a node's links measure at this moment: the sharing is in the figures.
  set_links(lockstep::measure_links(*this, *channel_, std::max(call.timeout, kLeastToMeasure)));
  if (before->sharing() > 0) share_links(1);
  const double changed = links_->largest_change(*before);
  if (rank() == 0)
    log().info(
        "group {}: a link seemed to have changed by a factor of {:.1f}; measured again, the largest change "
        "is {:.1f}",
        group_, worst, changed);
  look_after_ = changed > kChanged ? 64 : look_after_ * 2;
}

void ChannelEngine::share_links(int ranks) {
  if (links_ == nullptr) return;
  links_->set_sharing(ranks);
  set_links(links_);
}

std::unique_ptr<ChannelEngine> ChannelEngine::over(std::unique_ptr<WireChannel> channel, std::string group,
                                                   std::vector<int> nodes) {
  return std::make_unique<ChannelEngine>(name(), std::move(channel), std::move(group), std::move(nodes),
                                         selector_);
}

// Everybody says what it wants; then the members of each new group connect.
std::unique_ptr<Engine> ChannelEngine::divide(int colour, int key, const std::string& name,
                                              const Call& call) {
  const Call& told = begin(call, selector_.forced(), WireChannel::Kind::collective);
  const Choice mine{colour, key};
  std::vector<Choice> all(static_cast<std::size_t>(size()));
  Call gather;
  gather.what = Collective::all_gather;
  gather.in = &mine;
  gather.out = all.data();
  gather.count = sizeof(Choice);
  gather.dtype = DType::u8;
  Stage stage = stage_for(gather);
  selector_.choose(shape_of(gather), Order::canonical)->run(stage);

  std::vector<int> ranks;
  std::vector<int> places;
  for (int r = 0; r < size(); ++r)
    if (all[static_cast<std::size_t>(r)].colour == colour && colour >= 0) ranks.push_back(r);
  if (ranks.empty()) return nullptr;
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  for (int r : ranks) places.push_back(nodes()[static_cast<std::size_t>(r)]);
  auto part = over(channel_->among(ranks, name, told.timeout), name, std::move(places));
  if (links_ != nullptr) part->set_links(links_->among(ranks));
  if (call.whole != nullptr) part->call_ranks(rank_names().part(ranks));  // until the whole of it is split
  return part;
}

}  // namespace lockstep
