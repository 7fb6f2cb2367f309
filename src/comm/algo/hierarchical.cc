// hierarchical: inside a node, across nodes, inside again, with every local rank moving its own part.
//
//   1. inside   member j of each node sums everybody's part j        (L-1)/L · S bytes sent inside
//   2. across   the j-th members of all nodes sum part j by          2(M-1)/M · S/L bytes sent across
//               halving-doubling
//   3. inside   member j gives part j to all                         (L-1)/L · S bytes sent inside
//
// M nodes, L the size of the smallest: a larger node's further members contribute and receive only.
// Order of summation: canonical when the nodes are aligned subtrees of it, that is consecutive ranks, all
// nodes of one power of two but for a smaller last one. Otherwise by node.
#include <bit>

#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"
#include "comm/algo/halving_doubling.h"
#include "comm/call/nodes.h"

namespace lockstep {
namespace {

// The team of one phase: this rank's node, and those with its place in every node.
struct Layout {
  std::vector<int> inside;
  std::vector<int> across;  // empty when this rank owns no part
  int place = 0;            // in its node
  int parts = 1;            // members of the smallest node
};

Layout layout_of(std::span<const int> nodes, int rank) {
  const auto members = members_of_nodes(nodes);
  Layout layout;
  std::size_t smallest = members.front().size();
  for (const auto& node : members) {
    smallest = std::min(smallest, node.size());
    const auto at = std::find(node.begin(), node.end(), rank);
    if (at == node.end()) continue;
    layout.inside = node;
    layout.place = static_cast<int>(at - node.begin());
  }
  layout.parts = static_cast<int>(smallest);
  if (layout.place < layout.parts)
    for (const auto& node : members) layout.across.push_back(node[static_cast<std::size_t>(layout.place)]);
  return layout;
}

class Hierarchical final : public Algorithm {
 public:
  std::string_view name() const override { return "hierarchical"; }
  bool canonical(std::span<const int> nodes) const override { return nodes_are_aligned(nodes); }
  bool has(Collective what) const override { return what == Collective::all_reduce; }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    const auto members = members_of_nodes(shape.nodes);
    const auto nodes = static_cast<double>(members.size());
    const double local = shape.nodes.empty() ? 1 : static_cast<double>(shape.ranks) / nodes;
    const auto s = static_cast<double>(shape.bytes);
    const auto across = static_cast<double>(std::bit_width(members.size()));
    return {.messages = 2 * (local - 1) + 2 * across,
            .sent_bytes = 4 * (local - 1) / local * s + 4 * (nodes - 1) / nodes * s / local,
            .copied_bytes = s,
            .reduced_bytes = s + 2 * s / local};
  }
  void run(Stage& stage) const override;
};

void Hierarchical::run(Stage& stage) const {
  const Layout layout = layout_of(stage.nodes, stage.rank());
  const kernel::Reduction reduction = stage.reduction();
  const std::size_t element = stage.element();
  const auto part = [&](int j) { return part_of(stage.call.count, layout.parts, j, element); };
  const bool owner = layout.place < layout.parts;
  const Range own = owner ? part(layout.place) : Range{};
  Team inside(stage.channel(), layout.inside);

  // Room for the node's contributions to the own part.
  const std::size_t own_bytes = own.count() * element;
  std::byte* const room = stage.scratch.take(own_bytes * layout.inside.size());

  const auto source = [&](int j) {
    return std::span(stage.in() + part(j).begin * element, part(j).count() * element);
  };
  const int n = inside.size();
  for (int step = 1; step < n; ++step) {
    const int to = (inside.me() + step) % n;
    const int from = (inside.me() - step + n) % n;
    const auto out = to < layout.parts ? source(to) : std::span<const std::byte>();
    const auto in = owner ? std::span(room + own_bytes * static_cast<std::size_t>(from), own_bytes)
                          : std::span<std::byte>();
    inside.swap(to, out, from, in, Arrival::store, reduction);
  }
  if (owner) {
    std::vector<const void*> ins;
    for (int j = 0; j < n; ++j)
      ins.push_back(j == inside.me() ? source(j).data() : room + own_bytes * static_cast<std::size_t>(j));
    std::byte* const sum = stage.out() + own.begin * element;
    void* const out = sum;
    kernel::reduce_tree({&out, 1}, ins, own.count(), kernel::partial(reduction));

    Team across(stage.channel(), layout.across);
    HalvingDoubling scheme(across, own.count(), element);
    scheme.reduce(sum, reduction);
    scheme.gather(sum);
    kernel::finish(sum, sum, own.count(), stage.reduction());
  }
  for (int step = 1; step < n; ++step) {
    const int to = (inside.me() + step) % n;
    const int from = (inside.me() - step + n) % n;
    const auto out = owner ? slice(stage.out(), own, element) : std::span<std::byte>();
    const auto in = from < layout.parts ? slice(stage.out(), part(from), element) : std::span<std::byte>();
    inside.swap(to, out, from, in, Arrival::store, reduction);
  }
}

const Hierarchical kInstance;

}  // namespace

const Algorithm& kHierarchical = kInstance;

}  // namespace lockstep
