#include "comm/engine/node_engine.h"

#include <algorithm>
#include <numeric>

#include "comm/call/nodes.h"
#include "comm/engine/offers.h"
#include "comm/tune/selector.h"

namespace lockstep {
namespace {

// Who waits for whom decides who times out first: a node that misses one of its own says so before the other
// nodes give up on it, and they before their own members that wait for them.
constexpr std::chrono::milliseconds kAcrossGrace{1000};
// Members are patient with one that waits outside, where that can say so (Composable::watch, Commons).
constexpr std::chrono::milliseconds kInsideGrace{500};
constexpr std::chrono::milliseconds kBlindInsideGrace{2000};

// What is a part of a call: the whole of it is recorded already.
Call unrecorded(Call part) {
  part.flight = nullptr;
  part.timing = nullptr;
  return part;
}

}  // namespace

std::unique_ptr<Engine> NodeEngine::make(std::string name, std::unique_ptr<Engine> flat,
                                         std::unique_ptr<Engine> inside, AcrossMaker make_across,
                                         std::string group, const Call& call) {
  auto members = members_of_nodes(flat->nodes());
  const bool alone =
      std::all_of(members.begin(), members.end(), [](const auto& ranks) { return ranks.size() == 1; });
  // While it is made, the ranks of a part are called as in the group that it is split off.
  const RankNames made = flat->rank_names();
  std::vector<int> world;
  for (int r = 0; r < flat->size(); ++r) world.push_back(made.world(r));
  const RankNames names(group, std::move(world));
  if (members.size() == 1) {
    inside->call_ranks(names);
    return inside;
  }
  if (alone) {
    flat->call_ranks(names);
    if (Composable* const all = flat->composable()) all->watch(nullptr, {});
    if (name.ends_with(std::string("+") + flat->name())) return flat;
    return make_across(*flat, 0, flat->rank(), group, call);
  }

  std::unique_ptr<NodeEngine> engine(
      new NodeEngine(std::move(name), std::move(flat), std::move(inside), std::move(members)));
  engine->compose(std::move(make_across), std::move(group), names, call);
  return engine;
}

NodeEngine::NodeEngine(std::string name, std::unique_ptr<Engine> flat, std::unique_ptr<Engine> inside,
                       std::vector<std::vector<int>> members)
    : Engine({.name = std::move(name),
              .rank = flat->rank(),
              .nodes = flat->nodes(),
              .naming = std::make_shared<Naming>(flat->rank_names()),
              // On the processor's memory alone, with which by-node adds up, and which is all that `inside`
              // may have.
              .can = {.reachable_memory = inside->capabilities().reachable_memory,
                      .offers = flat->capabilities().offers},
              .selector = flat->selector()}),
      inside_(std::move(inside)),
      flat_(std::move(flat)),
      commons_(inside_->composable() == nullptr ? nullptr : inside_->composable()->commons()),
      members_(std::move(members)) {
  std::size_t smallest = members_.front().size();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const auto& ranks = members_[m];
    smallest = std::min(smallest, ranks.size());
    const auto at = std::find(ranks.begin(), ranks.end(), rank());
    if (at == ranks.end()) continue;
    node_ = m;
    place_ = static_cast<int>(at - ranks.begin());
  }
  parts_ = static_cast<int>(smallest);
  // Without common memory it works on equal shares of equal nodes.
  by_node_ = commons_ != nullptr || smallest * members_.size() == nodes().size();
  if (!by_node_) return;
  for (Offer& offer : composed_offers(nodes())) can().offers.push_back(std::move(offer));
}

std::function<void()> NodeEngine::idle() const {
  if (commons_ == nullptr) return {};
  return [local = inside_->composable()] { local->tell_waits({}); };
}

void NodeEngine::compose(AcrossMaker make_across, std::string group, const RankNames& names,
                         const Call& call) {
  make_across_ = std::move(make_across);
  Call column_call = call;
  column_call.sequence = 0;  // the new group's own calls are numbered from 1
  across_ = make_across_(*flat_, place_ < parts_ ? place_ : -1, static_cast<int>(node_),
                         group + "/across" + std::to_string(place_), column_call);
  std::vector<int> everybody(nodes().size());
  std::iota(everybody.begin(), everybody.end(), 0);
  naming()->add_part(flat_->naming(), std::move(everybody));
  naming()->add_part(inside_->naming(), members_[node_]);
  if (across_ != nullptr) naming()->add_part(across_->naming(), column());
  call_ranks(names);

  Composable* const whole = flat_->composable();
  inside_grace_ = whole != nullptr && commons_ != nullptr ? kInsideGrace : kBlindInsideGrace;
  if (whole != nullptr) {
    whole->watch(nullptr, idle());
    // Other nodes that wait for this rank learn whom it waits for in its own.
    if (Composable* const local = inside_->composable()) local->watch(whole, {});
  }
  if (Composable* const column = across_ == nullptr ? nullptr : across_->composable()) {
    column->share_links(parts_);
    column->watch(whole, idle());
  }
}

std::vector<int> NodeEngine::column() const {
  std::vector<int> ranks;
  for (const auto& node : members_) ranks.push_back(node[static_cast<std::size_t>(place_)]);
  return ranks;
}

int NodeEngine::place_of(int rank) const {
  const auto& local = members_[node_];
  const auto at = std::find(local.begin(), local.end(), rank);
  return at == local.end() ? -1 : static_cast<int>(at - local.begin());
}

// The same on every rank: it follows from the call, the nodes, and the table that all ranks hold.
const Algorithm* NodeEngine::choose(const Call& call) const {
  if (!call.algorithm.empty()) return find_algorithm(call.algorithm);  // null: the flat engine's own
  return selector()->choose(shape_of(call), call.order);
}

CallShape NodeEngine::shape_of(const Call& call) const {
  return {.what = call.what,
          .ranks = size(),
          .bytes = call.bytes(),
          .messages_only = true,
          .levels = by_node_,
          .messages_inside = commons_ == nullptr,
          .nodes = nodes()};
}

double NodeEngine::expected_seconds(const Call& call) const {
  const Algorithm* const algorithm = choose(call);
  if (algorithm == nullptr || !algorithm->needs().levels) return flat_->expected_seconds(call);
  return selector()->expect(*algorithm, shape_of(call));
}

void NodeEngine::tell_failure(const Error& error) noexcept {
  inside_->fail(error);
  if (across_ != nullptr) across_->fail(error);
  flat_->fail(error);
}

void NodeEngine::check(News news) {
  if (news == News::awaited) flat_->check(news);
}

void NodeEngine::execute(const Call& call) {
  if (is_message(call.what)) {
    if (place_of(call.root) < 0) return flat_->run(call);
    Call local = call;
    local.root = place_of(call.root);
    local.whole = &call;
    return inside_->run(local);
  }
  const Algorithm* const algorithm = choose(call);
  if (algorithm == nullptr || !algorithm->needs().levels) return run_flat(call);
  if (Composable* const whole = flat_->composable()) whole->announce(call);
  call.running(algorithm->name());
  Stage stage{.call = call, .me = rank(), .nodes = nodes(), .scratch = scratch_, .composed = this};
  algorithm->run(stage);
}

// The node's ranks meet first, as for every other call: they may have called different things.
void NodeEngine::run_flat(const Call& call) {
  Call whole = call;
  whole.timeout += kAcrossGrace;
  inside_->open(unrecorded(call));
  flat_->run(whole);
}

std::byte* NodeEngine::room(std::size_t bytes) {
  if (room_.bytes() < bytes) room_ = inside_->allocate(bytes, {});
  return room_.as<std::byte>();
}

void NodeEngine::inside(const Call& call, const Commons::Task& task) {
  commons_->with_peers(unrecorded(call), inside_grace_, task);
}

double NodeEngine::open_inside(const Call& call) { return inside_->open(unrecorded(call)); }

void NodeEngine::run_inside(const Call& call) {
  Call part = unrecorded(call);
  part.timeout += inside_grace_;
  inside_->run(part);
}

void NodeEngine::run_across(const Call& call) {
  Call part = unrecorded(call);
  part.timeout += kAcrossGrace;
  across_->run(part);
}

std::unique_ptr<Engine> NodeEngine::divide(int colour, int key, const std::string& name, const Call& call) {
  // Both may be parts of one engine, in which a group's name is there once. Common memory is known by it.
  const std::string local = commons_ != nullptr ? name : name + "/inside";
  Call part = call;
  part.whole = &call;
  std::unique_ptr<Engine> inside = inside_->split(colour, key, local, part);
  part.timeout += kAcrossGrace;
  auto flat = flat_->split(colour, key, name, part);
  if (flat == nullptr) return nullptr;
  if (Composable* const all = flat->composable()) all->watch(flat_->composable(), idle());
  try {
    return make(this->name(), std::move(flat), std::move(inside), make_across_, name, call);
  } catch (const Error&) {
    flat_->check(News::awaited);  // whoever is gone from the part is gone from here, or knows why it left
    throw;
  }
}

PeerView NodeEngine::peer(int rank) const {
  const int place = place_of(rank);
  if (place >= 0) return inside_->peer(place);
  return {.state = flat_->peer(rank).state};
}

}  // namespace lockstep
