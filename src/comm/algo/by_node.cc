// by-node: one engine inside the nodes, another across them (comm/call/levels.h). Every rank moves its own
// part across, in parallel with the others of its node:
//
//   all_reduce      1. inside: the j-th rank of each node sums everybody's part j
//                   2. across: the j-th ranks of all nodes all-reduce part j       2(M-1)/M · S/L bytes sent
//                   3. inside: everybody gets the other parts from where they are
//   reduce_scatter  1. inside: the j-th rank of each node sums the slices for the j-th ranks of all nodes
//                   2. across: these reduce-scatter them                           (M-1)/M · S/L bytes sent
//   all_gather      1. across: the j-th ranks of all nodes gather their slices     (M-1)/M · S/L bytes sent
//                   2. inside: everybody gets the others' from where they are
//   broadcast       across, among the ranks that stand where root stands in its node; then inside each node
//   barrier         inside, across among the first of each node, inside
//
// S bytes of all slices, M nodes, L the size of the smallest: a larger node's further members contribute and
// receive only, and another of their node acts for them. Inside, that is done in each other's memory
// (by_node_memory.cc) or, where nodes have none in common, by collectives of theirs (by_node_messages.cc).
// Order of summation: canonical when the nodes are aligned subtrees of it (nodes_are_aligned), else by node.
#include "comm/algo/by_node.h"

#include <algorithm>
#include <bit>

#include "comm/algo/builtin.h"
#include "comm/call/levels.h"
#include "comm/call/nodes.h"

namespace lockstep {

Call part_of_call(const Call& call) {
  Call part = call;
  part.algorithm.clear();
  part.whole = &call.shown();
  return part;
}

Call sum_across(const Stage& stage, const Call& told, const void* in, void* out, std::size_t count) {
  Call across = part_of_call(told);
  across.in = in;
  across.out = out;
  across.count = count;
  across.divisor = told.divisor == 0 ? stage.size() : told.divisor;
  return across;
}

Column::Column(const Levels& levels, int place)
    : members_(levels.members()),
      parts_(static_cast<std::size_t>(levels.parts())),
      place_(static_cast<std::size_t>(place)) {
  for (const auto& ranks : members_) slots_ = std::max(slots_, (ranks.size() - place_ + parts_ - 1) / parts_);
}

int Column::rank(std::size_t node, std::size_t slot) const {
  const std::size_t place = place_ + slot * parts_;
  return place < members_[node].size() ? members_[node][place] : -1;
}

bool nodes_are_equal(const Levels& levels) {
  const auto parts = static_cast<std::size_t>(levels.parts());
  return std::ranges::all_of(levels.members(), [&](const auto& ranks) { return ranks.size() == parts; });
}

namespace {

void broadcast(Stage& stage) {
  Levels& levels = stage.levels();
  const auto& members = levels.members();
  int node = 0;
  int place = 0;
  for (std::size_t m = 0; m < members.size(); ++m)
    if (const auto at = std::find(members[m].begin(), members[m].end(), stage.call.root);
        at != members[m].end()) {
      node = static_cast<int>(m);
      place = static_cast<int>(at - members[m].begin());
    }
  // A root of a larger node, whose place others lack, gives to the first of its node before.
  const int column = place < levels.parts() ? place : 0;
  const bool before = column != place && levels.node() == node;
  const auto inside = [&](int root) {
    Call part = part_of_call(stage.call);
    part.root = root;
    levels.run_inside(part);
  };
  if (before) inside(place);
  if (levels.place() == column) {
    Call part = part_of_call(stage.call);
    part.root = node;
    levels.run_across(part);
  }
  if (!before) inside(column);
}

// The links among some ranks, as those of a group.
class WiresAmong final : public Wires {
 public:
  WiresAmong(const Wires& wires, const std::vector<int>& ranks) : wires_(wires), ranks_(ranks) {}
  double seconds(int from, int to, double bytes) const override {
    return wires_.seconds(ranks_[static_cast<std::size_t>(from)], ranks_[static_cast<std::size_t>(to)],
                          bytes);
  }

 private:
  const Wires& wires_;
  const std::vector<int>& ranks_;
};

// A call among `ranks` that share no memory, by whatever algorithm their engine will take. `nodes`: of each.
double fastest(const CallShape& shape, Collective what, std::size_t bytes, const std::vector<int>& ranks,
               const std::vector<int>& nodes) {
  if (ranks.size() < 2) return 0;
  const WiresAmong wires(*shape.wires, ranks);
  const Routes routes = plain_routes(static_cast<int>(ranks.size()));
  const CallShape part{.what = what,
                       .ranks = static_cast<int>(ranks.size()),
                       .bytes = bytes,
                       .messages_only = true,
                       .nodes = nodes,
                       .wires = &wires,
                       .routes = &routes};
  double least = 0;
  for (const Algorithm* algorithm : all_algorithms()) {
    const Needs needs = algorithm->needs();
    if (needs.reach || needs.levels || !algorithm->has(what)) continue;
    if (reduces(what) && !algorithm->canonical(nodes)) continue;
    const double seconds = wire_seconds(algorithm->cost(part), wires, part.ranks);
    if (seconds > 0 && (least == 0 || seconds < least)) least = seconds;
  }
  return least;
}

// The nodes of a call, as its cost sees them.
struct Shares {
  explicit Shares(const CallShape& shape) : members(members_of_nodes(shape.nodes)) {
    for (std::size_t m = 0; m < members.size(); ++m) {
      smallest = std::min(smallest, members[m].size());
      largest = std::max(largest, members[m].size());
      first.push_back(members[m].front());
      one_each.push_back(static_cast<int>(m));
    }
    one_node.assign(members.front().size(), 0);
  }
  double across(const CallShape& shape, Collective what, std::size_t bytes) const {
    return shape.wires == nullptr ? 0 : fastest(shape, what, bytes, first, one_each);
  }
  // Nothing where nodes share memory.
  double inside(const CallShape& shape, Collective what, std::size_t bytes) const {
    return shape.wires == nullptr || !shape.messages_inside
               ? 0
               : fastest(shape, what, bytes, members.front(), one_node);
  }

  std::vector<std::vector<int>> members;
  std::vector<int> first;     // of each node
  std::vector<int> one_each;  // their nodes
  std::vector<int> one_node;  // the nodes of those on one
  std::size_t smallest = ~std::size_t{0};
  std::size_t largest = 0;
};

Cost all_reduce_cost(const CallShape& shape, const Shares& shares) {
  const auto nodes = static_cast<double>(shares.members.size());
  const double local = static_cast<double>(shape.ranks) / nodes;
  const auto s = static_cast<double>(shape.bytes);
  const std::size_t part_bytes = shape.bytes / shares.smallest;
  const double part = s / static_cast<double>(shares.smallest);
  const double remote = (nodes - 1) / nodes * part;
  const double away = shape.messages_inside ? s - part : 0;  // what moves inside a node by messages
  return {.barriers = 3,
          // Across as few, and as few bytes, as any algorithm takes.
          .messages = static_cast<double>(std::bit_width(shares.members.size() - 1)) +
                      (shape.messages_inside ? 3 * (local - 1) : 0),
          .sent_bytes = 4 * remote + 4 * away,
          .copied_bytes = 2 * (s - part),
          .reduced_bytes = (local + 1) * part + 3 * remote,
          .wire_s = shares.across(shape, Collective::all_reduce, part_bytes) +
                    shares.inside(shape, Collective::reduce_scatter, part_bytes) +
                    shares.inside(shape, Collective::all_gather, part_bytes)};
}

// Of reduce_scatter and all_gather, whose slices all ranks have: what goes each way, once.
Cost slices_cost(const CallShape& shape, const Shares& shares) {
  const auto nodes = static_cast<double>(shares.members.size());
  const double local = static_cast<double>(shape.ranks) / nodes;
  const std::size_t slots = (shares.largest + shares.smallest - 1) / shares.smallest;
  const std::size_t column = slots * shape.bytes;
  const auto s = static_cast<double>(column);
  const double all = static_cast<double>(shape.ranks) * static_cast<double>(shape.bytes);
  const bool sums = shape.what == Collective::reduce_scatter;
  const double away = shape.messages_inside ? (local - 1) * nodes * s : 0;
  return {.barriers = !sums ? 3.0 : slots == 1 ? 2.0 : 4.0,
          .messages = nodes - 1 + (shape.messages_inside ? 2 * (local - 1) : 0),
          .sent_bytes = 2 * (nodes - 1) * s + 2 * away,
          .copied_bytes = sums ? 0 : 2 * all,
          .reduced_bytes = sums ? (local + 1) * nodes * s + (nodes + 1) * s : 0,
          .wire_s = shares.across(shape, shape.what, column) +
                    shares.inside(shape, shape.what, shares.members.size() * column)};
}

class ByNode final : public Algorithm {
 public:
  std::string_view name() const override { return "by-node"; }
  bool canonical(std::span<const int> nodes) const override { return nodes_are_aligned(nodes); }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce_scatter ||
           what == Collective::all_gather || what == Collective::broadcast || what == Collective::barrier;
  }
  Needs needs() const override { return {.levels = true}; }
  Cost cost(const CallShape& shape) const override {
    const Shares shares(shape);
    const auto depth = static_cast<double>(std::bit_width(shares.members.size() - 1));
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce: return all_reduce_cost(shape, shares);
      case Collective::reduce_scatter:
      case Collective::all_gather: return slices_cost(shape, shares);
      case Collective::broadcast:
        return {.barriers = 2, .messages = depth, .sent_bytes = depth * s, .copied_bytes = 2 * s};
      default: return {.barriers = 2, .messages = 2 * depth};
    }
  }
  void run(Stage& stage) const override {
    const bool memory = stage.levels().shares_memory();
    const Collective what = stage.call.what;
    if (what == Collective::broadcast) return broadcast(stage);
    if (what == Collective::barrier || stage.call.bytes() == 0)
      return memory ? by_memory::barrier(stage) : by_messages::barrier(stage);
    if (what == Collective::all_reduce)
      return memory ? by_memory::all_reduce(stage) : by_messages::all_reduce(stage);
    if (what == Collective::reduce_scatter)
      return memory ? by_memory::reduce_scatter(stage) : by_messages::reduce_scatter(stage);
    return memory ? by_memory::all_gather(stage) : by_messages::all_gather(stage);
  }
};

const ByNode kInstance;

}  // namespace

const Algorithm& kByNode = kInstance;

}  // namespace lockstep
