// by-node: shared memory inside the nodes, another engine across them (comm/levels.h). Every rank moves its
// own part across, in parallel with the others of its node:
//
//   all_reduce  1. inside: the j-th rank of each node sums everybody's part j, straight from their buffers
//               2. across: the j-th ranks of all nodes all-reduce part j       2(M-1)/M · S/L bytes sent
//               3. inside: everybody copies the other parts from where they are
//   broadcast   across, among the ranks that stand where root stands in its node; then inside each node
//   barrier     inside, across among the first of each node, inside
//
// M nodes, L the size of the smallest: a larger node's further members contribute and receive only.
// Order of summation: canonical when the nodes are aligned subtrees of it (nodes_are_aligned), else by node.
#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/algo/builtin.h"
#include "comm/call/levels.h"
#include "comm/call/nodes.h"
#include "comm/call/range.h"

namespace lockstep {
namespace {

// A call of one level, which is free to choose its algorithm.
Call part_of_call(const Call& call) {
  Call part = call;
  part.algorithm.clear();
  part.whole = &call.shown();
  return part;
}

// Part `own` of everybody on this node, then of all nodes; ends in the own output.
void reduce_own_part(Stage& stage, const Reach& reach, const Call& call, Range own) {
  const std::size_t element = size_of(call.dtype);
  const DType wide = accumulator_of(call.dtype);
  auto* const out = static_cast<std::byte*>(call.out) + own.begin * element;
  // In place, only this rank reads its own part of its own input.
  std::byte* const sum = wide == call.dtype ? out : stage.scratch.take(own.count() * size_of(wide));
  const auto locals = stage.levels().members()[static_cast<std::size_t>(stage.levels().node())].size();
  std::vector<const void*> ins;
  for (std::size_t r = 0; r < locals; ++r)
    ins.push_back(static_cast<const std::byte*>(reach.in(static_cast<int>(r))) + own.begin * element);
  kernel::reduce_tree_raw(sum, ins, own.count(), {.dtype = call.dtype, .op = call.op, .divisor = 1});

  Call across = part_of_call(call);
  across.in = sum;
  across.out = sum;
  across.count = own.count();
  across.dtype = wide;
  across.divisor = call.divisor == 0 ? stage.size() : call.divisor;
  stage.levels().run_across(across);
  if (sum != out)
    kernel::finish(out, sum, own.count(), {.dtype = call.dtype, .op = ReduceOp::sum, .divisor = 1});
}

void barrier(Stage& stage) {
  Levels& levels = stage.levels();
  levels.inside(stage.call, [&](Reach& reach, const Call&) {
    if (levels.place() == 0) levels.run_across(part_of_call(stage.call));
    reach.barrier();
  });
}

void all_reduce(Stage& stage) {
  const Call& call = stage.call;
  Levels& levels = stage.levels();
  if (call.bytes() == 0) return barrier(stage);
  // Buffers that the node's other ranks can't reach go through one that they can.
  const bool staged = !levels.reaches(call.in) || !levels.reaches(call.out);
  Call reachable = call;
  reachable.whole = &call.shown();
  if (staged) {
    std::byte* const room = levels.room(call.bytes());
    std::memcpy(room, call.in, call.bytes());
    reachable.in = room;
    reachable.out = room;
  }
  levels.inside(reachable, [&](Reach& reach, const Call& told) {
    const std::size_t element = size_of(call.dtype);
    const auto part = [&](int j) { return part_of(call.count, levels.parts(), j, element); };
    const int place = levels.place();
    if (place < levels.parts() && part(place).count() > 0) reduce_own_part(stage, reach, told, part(place));
    reach.barrier();
    for (int j = 0; j < levels.parts(); ++j) {
      if (j == place && !staged) continue;
      const std::size_t at = part(j).begin * element;
      std::memcpy(stage.out() + at, static_cast<const std::byte*>(reach.out(j)) + at,
                  part(j).count() * element);
    }
    reach.barrier();  // nobody changes its output before all have read it
  });
}

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

// The links between the first ranks of the nodes, as those of a group.
class FirstOfNodes final : public Wires {
 public:
  FirstOfNodes(const Wires& wires, const std::vector<std::vector<int>>& members)
      : wires_(wires), members_(members) {}
  double seconds(int from, int to, double bytes) const override {
    return wires_.seconds(members_[static_cast<std::size_t>(from)].front(),
                          members_[static_cast<std::size_t>(to)].front(), bytes);
  }

 private:
  const Wires& wires_;
  const std::vector<std::vector<int>>& members_;
};

// By whatever algorithm the engine across will take.
double fastest_across(const CallShape& shape, const std::vector<std::vector<int>>& members,
                      std::size_t bytes) {
  const FirstOfNodes wires(*shape.wires, members);
  const int nodes = static_cast<int>(members.size());
  const Routes routes = plain_routes(nodes);
  std::vector<int> one_each(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) one_each[m] = static_cast<int>(m);
  const CallShape across{.what = shape.what,
                         .ranks = nodes,
                         .bytes = bytes,
                         .messages_only = true,
                         .nodes = one_each,
                         .wires = &wires,
                         .routes = &routes};
  double fastest = 0;
  for (const Algorithm* algorithm : all_algorithms()) {
    const Needs needs = algorithm->needs();
    if (needs.reach || needs.levels || !algorithm->has(shape.what) || !algorithm->canonical(one_each))
      continue;
    const double seconds = algorithm->cost(across).wire_s;
    if (seconds > 0 && (fastest == 0 || seconds < fastest)) fastest = seconds;
  }
  return fastest;
}

class ByNode final : public Algorithm {
 public:
  std::string_view name() const override { return "by-node"; }
  bool canonical(std::span<const int> nodes) const override { return nodes_are_aligned(nodes); }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::broadcast || what == Collective::barrier;
  }
  Needs needs() const override { return {.levels = true}; }
  Cost cost(const CallShape& shape) const override {
    const auto members = members_of_nodes(shape.nodes);
    std::size_t smallest = members.front().size();
    for (const auto& node : members) smallest = std::min(smallest, node.size());
    const auto nodes = static_cast<double>(members.size());
    const double local = static_cast<double>(shape.ranks) / nodes;
    const auto s = static_cast<double>(shape.bytes);
    const double part = s / static_cast<double>(smallest);
    const auto depth = static_cast<double>(std::bit_width(members.size() - 1));
    switch (shape.what) {
      case Collective::all_reduce:
        return {
            .barriers = 3,
            .messages = depth,  // as few, and as few bytes, as any algorithm takes across
            .sent_bytes = 4 * (nodes - 1) / nodes * part,
            .copied_bytes = 2 * (s - part),
            .reduced_bytes = (local + 1) * part + 3 * (nodes - 1) / nodes * part,
            .wire_s = shape.wires == nullptr ? 0 : fastest_across(shape, members, shape.bytes / smallest)};
      case Collective::broadcast:
        return {.barriers = 2, .messages = depth, .sent_bytes = depth * s, .copied_bytes = 2 * s};
      default: return {.barriers = 2, .messages = 2 * depth};
    }
  }
  void run(Stage& stage) const override {
    switch (stage.call.what) {
      case Collective::all_reduce: return all_reduce(stage);
      case Collective::broadcast: return broadcast(stage);
      default: return barrier(stage);
    }
  }
};

const ByNode kInstance;

}  // namespace

const Algorithm& kByNode = kInstance;

}  // namespace lockstep
