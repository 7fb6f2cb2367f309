#include "comm/engine/node_engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/nodes.h"
#include "comm/range.h"

namespace lockstep {
namespace {

// Who waits for whom decides who times out first: a node that misses one of its own says so before the other
// nodes give up on it, and they before their own members that wait for them.
constexpr std::chrono::milliseconds kAcrossGrace{1000};
// Members are patient with one that waits outside, where the engine across lets it say so (Engine::watch).
constexpr std::chrono::milliseconds kInsideGrace{500};
constexpr std::chrono::milliseconds kBlindInsideGrace{2000};

constexpr const char* kByNodes = "hierarchical";

}  // namespace

std::unique_ptr<Engine> NodeEngine::make(const char* name, std::unique_ptr<Engine> flat,
                                         std::unique_ptr<ShmEngine> inside, AcrossMaker make_across,
                                         std::string group, const Call& call) {
  auto members = members_of_nodes(flat->nodes());
  const bool alone =
      std::all_of(members.begin(), members.end(), [](const auto& ranks) { return ranks.size() == 1; });
  if (members.size() == 1 && inside != nullptr) return inside;
  // While it is made, the ranks of a part are called as in the group that it is split off.
  const RankNames made = flat->rank_names();
  std::vector<int> world;
  for (int r = 0; r < flat->size(); ++r) world.push_back(made.world(r));
  const RankNames names(group, std::move(world));
  if (alone) {
    flat->call_ranks(names);
    if (Composable* const all = flat->composable()) all->watch(nullptr, {});
    if (std::string_view(name).ends_with(flat->name())) return flat;
    return make_across(*flat, 0, flat->rank(), group, call);
  }

  std::unique_ptr<NodeEngine> engine(
      new NodeEngine(name, std::move(flat), std::move(inside), std::move(members)));
  engine->compose(std::move(make_across), std::move(group), names, call);
  return engine;
}

NodeEngine::NodeEngine(const char* name, std::unique_ptr<Engine> flat, std::unique_ptr<ShmEngine> inside,
                       std::vector<std::vector<int>> members)
    : Engine({.name = name,
              .rank = flat->rank(),
              .nodes = flat->nodes(),
              .naming = std::make_shared<Naming>(flat->rank_names()),
              .can = {.devices = flat->capabilities().devices,
                      .reachable_memory = inside->capabilities().reachable_memory,
                      .offers = flat->capabilities().offers},
              .selector = flat->selector()}),
      inside_(std::move(inside)),
      flat_(std::move(flat)),
      members_(std::move(members)),
      aligned_(nodes_are_aligned(nodes())) {
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

  const auto idle = [local = inside_.get()] { local->waits_outside(); };
  Composable* const whole = flat_->composable();
  inside_grace_ = whole != nullptr ? kInsideGrace : kBlindInsideGrace;
  if (whole != nullptr) {
    whole->watch(nullptr, idle);
    // Other nodes that wait for this rank learn whom it waits for in its own.
    inside_->on_wait([whole, local = members_[node_]](const std::vector<int>& ranks) {
      std::vector<int> flat_ranks;
      for (int r : ranks) flat_ranks.push_back(local[static_cast<std::size_t>(r)]);
      whole->tell_waits(flat_ranks);
    });
  }
  if (Composable* const column = across_ == nullptr ? nullptr : across_->composable()) {
    column->share_links(parts_);
    column->watch(whole, idle);
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

// The same on every rank: it follows from the call alone.
bool NodeEngine::by_nodes(const Call& call) const {
  const bool free = call.algorithm.empty() || call.algorithm == kByNodes;
  switch (call.what) {
    case Collective::all_reduce:
      return free && (call.algorithm == kByNodes || aligned_ || call.order == Order::any);
    case Collective::barrier: return call.algorithm.empty();
    case Collective::broadcast: {
      if (!call.algorithm.empty()) return false;
      for (const auto& ranks : members_)
        if (const auto at = std::find(ranks.begin(), ranks.end(), call.root); at != ranks.end())
          return at - ranks.begin() < parts_;
      return false;
    }
    default: return false;
  }
}

// Inside: everybody's part is read and written once, as in a direct all-reduce. Across: one part, beside the
// others.
double NodeEngine::expected_seconds(const Call& call) const {
  if (!by_nodes(call) || call.what != Collective::all_reduce) return flat_->expected_seconds(call);
  if (across_ == nullptr) return 0;
  Call part = call;
  part.algorithm.clear();
  part.count = part_of(call.count, parts_, place_, size_of(call.dtype)).count();
  part.dtype = accumulator_of(call.dtype);
  return inside_->expected_seconds(call) + across_->expected_seconds(part);
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
  if (!by_nodes(call)) return run_flat(call);
  if (Composable* const whole = flat_->composable()) whole->announce(call);
  switch (call.what) {
    case Collective::all_reduce: return all_reduce(call);
    case Collective::barrier: return barrier(call);
    default: return broadcast(call);
  }
}

// The node's ranks meet first, as for every other call: they may have called different things.
void NodeEngine::run_flat(const Call& call) {
  Call whole = call;
  whole.timeout += kAcrossGrace;
  Call inside = call;
  inside.flight = nullptr;
  inside.timing = nullptr;
  inside_->with_peers(inside, inside_grace_, [&](Reach&, const Call&) { flat_->run(whole); });
}

// Part `own` of everybody on this node, then of all nodes; ends in the own output.
void NodeEngine::reduce_own_part(const Reach& reach, const Call& call, Range own) {
  const std::size_t element = size_of(call.dtype);
  const DType wide = accumulator_of(call.dtype);
  auto* const out = static_cast<std::byte*>(call.out) + own.begin * element;
  // In place, only this rank reads its own part of its own input.
  std::byte* const sum = wide == call.dtype ? out : scratch_.take(own.count() * size_of(wide));
  std::vector<const void*> ins;
  for (int r = 0; r < inside_->size(); ++r)
    ins.push_back(static_cast<const std::byte*>(reach.in(r)) + own.begin * element);
  kernel::reduce_tree_raw(sum, ins, own.count(), {.dtype = call.dtype, .op = call.op, .divisor = 1});

  Call across = call;
  across.in = sum;
  across.out = sum;
  across.count = own.count();
  across.dtype = wide;
  across.algorithm.clear();
  across.timeout += kAcrossGrace;
  across.whole = &call.shown();
  across.divisor = call.divisor == 0 ? size() : call.divisor;
  across_->run(across);
  if (sum != out)
    kernel::finish(out, sum, own.count(), {.dtype = call.dtype, .op = ReduceOp::sum, .divisor = 1});
}

void NodeEngine::all_reduce(const Call& call) {
  const std::size_t bytes = call.bytes();
  if (bytes == 0) return barrier(call);
  call.running(kByNodes);
  // Buffers that the node's other ranks can't reach go through one that they can.
  const bool staged = !inside_->reaches(call.in) || !inside_->reaches(call.out);
  Call reachable = call;
  reachable.flight = nullptr;
  reachable.timing = nullptr;
  reachable.whole = &call;
  if (staged) {
    if (stage_.bytes() < bytes) stage_ = inside_->allocate(bytes);
    std::memcpy(stage_.data(), call.in, bytes);
    reachable.in = stage_.data();
    reachable.out = stage_.data();
  }
  inside_->with_peers(reachable, inside_grace_, [&](Reach& reach, const Call& told) {
    const std::size_t element = size_of(call.dtype);
    const auto part = [&](int j) { return part_of(call.count, parts_, j, element); };
    if (place_ < parts_ && part(place_).count() > 0) reduce_own_part(reach, told, part(place_));
    reach.barrier();
    auto* const to = static_cast<std::byte*>(call.out);
    for (int j = 0; j < parts_; ++j) {
      if (j == place_ && !staged) continue;
      const std::size_t at = part(j).begin * element;
      std::memcpy(to + at, static_cast<const std::byte*>(reach.out(j)) + at, part(j).count() * element);
    }
    reach.barrier();  // nobody changes its output before all have read it
  });
}

void NodeEngine::barrier(const Call& call) {
  call.running(kByNodes);
  inside_->with_peers(call, inside_grace_, [&](Reach& reach, const Call&) {
    if (place_ == 0) {
      Call across = call;
      across.timeout += kAcrossGrace;
      across_->run(across);
    }
    reach.barrier();
  });
}

// Across first, among the ranks that stand where root stands in its node; then inside each node.
void NodeEngine::broadcast(const Call& call) {
  int place = 0;
  int node = 0;
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (const auto at = std::find(members_[m].begin(), members_[m].end(), call.root);
        at != members_[m].end()) {
      node = static_cast<int>(m);
      place = static_cast<int>(at - members_[m].begin());
    }
  call.running(kByNodes);
  if (place_ == place) {
    Call across = call;
    across.root = node;
    across.timeout += kAcrossGrace;
    across.whole = &call;
    across_->run(across);
  }
  Call inside = call;
  inside.whole = &call;
  inside.root = place;
  inside.timeout += inside_grace_;
  inside_->run(inside);
}

std::unique_ptr<Engine> NodeEngine::divide(int colour, int key, const std::string& name, const Call& call) {
  std::unique_ptr<Engine> inside = inside_->split(colour, key, name, call);
  Call across = call;
  across.timeout += kAcrossGrace;
  across.whole = &call;
  auto flat = flat_->split(colour, key, name, across);
  if (flat == nullptr) return nullptr;
  if (Composable* const part = flat->composable())
    part->watch(flat_->composable(), [this] { inside_->waits_outside(); });
  // What a shared-memory engine splits into is one.
  std::unique_ptr<ShmEngine> local(static_cast<ShmEngine*>(inside.release()));
  try {
    return make(this->name(), std::move(flat), std::move(local), make_across_, name, call);
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
