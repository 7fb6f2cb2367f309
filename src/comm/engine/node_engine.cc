#include "comm/engine/node_engine.h"

#include <algorithm>
#include <cstring>

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
    flat->watch(nullptr, {});
    if (std::string_view(name).ends_with(flat->name())) return flat;
    return make_across(*flat, 0, flat->rank(), group, call);
  }

  std::unique_ptr<NodeEngine> engine(new NodeEngine);
  engine->name_ = name;
  engine->group_ = std::move(group);
  engine->aligned_ = nodes_are_aligned(flat->nodes());
  engine->members_ = std::move(members);
  std::size_t smallest = engine->members_.front().size();
  for (std::size_t m = 0; m < engine->members_.size(); ++m) {
    const auto& ranks = engine->members_[m];
    smallest = std::min(smallest, ranks.size());
    const auto at = std::find(ranks.begin(), ranks.end(), flat->rank());
    if (at == ranks.end()) continue;
    engine->node_ = m;
    engine->place_ = static_cast<int>(at - ranks.begin());
  }
  engine->parts_ = static_cast<int>(smallest);
  const bool owner = engine->place_ < engine->parts_;
  Call column_call = call;
  column_call.sequence = 0;  // the new group's own calls are numbered from 1
  engine->across_ = make_across(*flat, owner ? engine->place_ : -1, static_cast<int>(engine->node_),
                                engine->group_ + "/across" + std::to_string(engine->place_), column_call);
  if (engine->across_ != nullptr) {
    engine->across_->call_ranks(names.part(engine->column()));
    engine->across_->share_links(engine->parts_);
  }
  flat->call_ranks(names);
  inside->call_ranks(names.part(engine->members_[engine->node_]));
  const auto idle = [local = inside.get()] { local->waits_outside(); };
  engine->inside_grace_ = flat->watch(nullptr, idle) ? kInsideGrace : kBlindInsideGrace;
  if (engine->across_ != nullptr) engine->across_->watch(flat.get(), idle);
  // Other nodes that wait for this rank learn whom it waits for in its own.
  inside->on_wait(
      [whole = flat.get(), local = engine->members_[engine->node_]](const std::vector<int>& ranks) {
        std::vector<int> flat_ranks;
        for (int r : ranks) flat_ranks.push_back(local[static_cast<std::size_t>(r)]);
        whole->tell_waits(flat_ranks);
      });
  engine->inside_ = std::move(inside);
  engine->flat_ = std::move(flat);
  engine->make_across_ = std::move(make_across);
  return engine;
}

std::vector<int> NodeEngine::column() const {
  std::vector<int> ranks;
  for (const auto& node : members_) ranks.push_back(node[static_cast<std::size_t>(place_)]);
  return ranks;
}

void NodeEngine::call_ranks(RankNames names) {
  inside_->call_ranks(names.part(members_[node_]));
  if (across_ != nullptr) across_->call_ranks(names.part(column()));
  flat_->call_ranks(std::move(names));
}

std::string NodeEngine::refuses(const Call& call) const {
  if (std::string why = flat_->refuses(call); !why.empty()) return why;
  if (across_ == nullptr || !by_nodes(call) || !reduces(call.what)) return {};
  Call part = call;
  part.algorithm.clear();
  part.dtype = accumulator_of(call.dtype);
  return across_->refuses(part);
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

template <class Body>
auto NodeEngine::together(Body&& body) {
  if (failure_) throw_record(*failure_);
  try {
    return body();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

void NodeEngine::fail(const Error& error) noexcept {
  if (!failure_) failure_ = record_of(error);
  inside_->fail(error);
  if (across_ != nullptr) across_->fail(error);
  flat_->fail(error);
}

void NodeEngine::run(const Call& call) {
  together([&] {
    if ((call.what == Collective::send || call.what == Collective::recv) && place_of(call.root) >= 0) {
      Call local = call;
      local.root = place_of(call.root);
      local.whole = &call;
      return inside_->run(local);
    }
    const bool message = call.what == Collective::send || call.what == Collective::recv;
    if (message) return flat_->run(call);
    if (!by_nodes(call)) return run_flat(call);
    flat_->announce(call);
    switch (call.what) {
      case Collective::all_reduce: return all_reduce(call);
      case Collective::barrier: return barrier(call);
      default: return broadcast(call);
    }
  });
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

std::unique_ptr<Engine> NodeEngine::split(int colour, int key, const std::string& name, const Call& call) {
  return together([&]() -> std::unique_ptr<Engine> {
    std::unique_ptr<Engine> inside = inside_->split(colour, key, name, call);
    Call across = call;
    across.timeout += kAcrossGrace;
    across.whole = &call;
    auto flat = flat_->split(colour, key, name, across);
    if (flat == nullptr) return nullptr;
    flat->watch(flat_.get(), [this] { inside_->waits_outside(); });
    // What a shared-memory engine splits into is one.
    std::unique_ptr<ShmEngine> local(static_cast<ShmEngine*>(inside.release()));
    try {
      return make(name_, std::move(flat), std::move(local), make_across_, name, call);
    } catch (const Error&) {
      flat_->catch_up();  // whoever is gone from the part is gone from here, or knows why it left
      throw;
    }
  });
}

std::span<std::byte> NodeEngine::flight_memory(int rank) {
  const int place = place_of(rank);
  return place < 0 ? std::span<std::byte>() : inside_->flight_memory(place);
}

std::string NodeEngine::peer_state(int rank) const {
  const int place = place_of(rank);
  return place < 0 ? flat_->peer_state(rank) : inside_->peer_state(place);
}

int NodeEngine::peer_pid(int rank) const {
  const int place = place_of(rank);
  return place < 0 ? 0 : inside_->peer_pid(place);
}

}  // namespace lockstep
