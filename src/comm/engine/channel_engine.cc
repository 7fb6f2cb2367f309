#include "comm/engine/channel_engine.h"

#include <algorithm>
#include <new>

#include "comm/algo/team.h"
#include "comm/engine/vendor.h"

namespace lockstep {
namespace {

struct Choice {
  std::int64_t colour;
  std::int64_t key;
};

}  // namespace

ChannelEngine::ChannelEngine(const char* name, std::unique_ptr<WireChannel> channel, std::string group,
                             std::vector<int> nodes, Selector selector)
    : name_(name),
      channel_(std::move(channel)),
      group_(std::move(group)),
      nodes_(std::move(nodes)),
      selector_(std::move(selector)) {}

Shape ChannelEngine::shape_of(const Call& call) const {
  return {.what = call.what, .ranks = size(), .bytes = call.bytes(), .messages_only = true, .nodes = nodes_};
}

std::string ChannelEngine::refuses(const Call& call) const {
  if (call.device.kind != Device::Kind::cpu)
    return std::string("the ") + name_ + " engine works on host memory";
  if (call.algorithm.empty()) return {};
  const std::vector<std::string> known = algorithms(call.what);
  if (std::find(known.begin(), known.end(), call.algorithm) != known.end()) return {};
  if (known.empty()) return "it takes no algorithm, not '" + call.algorithm + "'";
  std::string names;
  for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
  return std::string(to_string(call.what)) + " has no algorithm '" + call.algorithm + "' on engine " + name_ +
         "; accepted: " + names;
}

std::vector<std::string> ChannelEngine::algorithms(Collective what) const {
  std::vector<std::string> names;
  for (const Algorithm* algorithm : all_algorithms())
    if (algorithm->has(what) && !algorithm->shares_memory()) names.emplace_back(algorithm->name());
  return names;
}

// A rank that gives up in the middle of a call takes the group along: its peers would wait for it in vain.
template <class Body>
auto ChannelEngine::together(const Call& call, WireChannel::Kind kind, Body&& body) {
  channel_->check();
  Call told = call;  // learns its divisor on the way
  channel_->begin(told, card_of(call, selector_.forced()), kind);
  try {
    return body(told);
  } catch (const Error& error) {
    channel_->fail(error);
    channel_->check();  // what the group failed with, should another rank have been first
    throw;
  } catch (const std::bad_alloc&) {
    const SystemError error("rank " + std::to_string(rank()) + " is out of memory in " + call.describe() +
                            " of group " + group_);
    channel_->fail(error);
    throw error;
  }
}

void ChannelEngine::run(const Call& call) {
  if (call.what == Collective::send || call.what == Collective::recv)
    return together(call, WireChannel::Kind::point_to_point, [&](Call& told) {
      told.running("message");
      Team team = Team::whole(*channel_);
      if (call.what == Collective::send)
        team.send(call.root, std::span(static_cast<const std::byte*>(call.in), call.bytes()), {});
      else
        team.recv(call.root, std::span(static_cast<std::byte*>(call.out), call.bytes()), Arrival::store, {});
    });
  const Algorithm* const algorithm =
      call.algorithm.empty() ? selector_.choose(shape_of(call), call.order) : find_algorithm(call.algorithm);
  together(call, WireChannel::Kind::collective, [&](Call& told) {
    told.running(algorithm->name());
    Stage stage{told, *channel_, scratch_, nodes_};
    algorithm->run(stage);
  });
}

double ChannelEngine::expected_seconds(const Call& call) const {
  const Algorithm* const algorithm =
      call.algorithm.empty() ? selector_.choose(shape_of(call), call.order) : find_algorithm(call.algorithm);
  return algorithm == nullptr ? 0 : selector_.expect(*algorithm, shape_of(call));
}

CommMemory ChannelEngine::allocate(std::size_t bytes) { return private_memory(bytes); }

std::unique_ptr<Engine> ChannelEngine::over(std::unique_ptr<WireChannel> channel, std::string group,
                                            std::vector<int> nodes) {
  return std::make_unique<ChannelEngine>(name_, std::move(channel), std::move(group), std::move(nodes),
                                         selector_);
}

// Everybody says what it wants; then the members of each new group connect.
std::unique_ptr<Engine> ChannelEngine::split(int colour, int key, const std::string& name, const Call& call) {
  return together(call, WireChannel::Kind::collective, [&](Call& told) -> std::unique_ptr<Engine> {
    const Choice mine{colour, key};
    std::vector<Choice> all(static_cast<std::size_t>(size()));
    Call gather;
    gather.what = Collective::all_gather;
    gather.in = &mine;
    gather.out = all.data();
    gather.count = sizeof(Choice);
    gather.dtype = DType::u8;
    Stage stage{gather, *channel_, scratch_, nodes_};
    kRing.run(stage);

    std::vector<int> ranks;
    std::vector<int> nodes;
    for (int r = 0; r < size(); ++r)
      if (all[static_cast<std::size_t>(r)].colour == colour && colour >= 0) ranks.push_back(r);
    if (ranks.empty()) return nullptr;
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
    });
    for (int r : ranks) nodes.push_back(nodes_[static_cast<std::size_t>(r)]);
    return over(channel_->among(ranks, name, told.timeout), name, std::move(nodes));
  });
}

}  // namespace lockstep
