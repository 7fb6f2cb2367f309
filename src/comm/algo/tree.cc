// tree: a binomial tree, pipelined in chunks. Rank r takes from r+1, r+2, r+4 … (as long as that bit of r
// is zero), in that order, and gives to r minus its lowest set bit; rank 0 ends with the whole sum, and
// results go down the same way. Where links were measured, another rank of the two may hold a partial sum
// (algo/routes.h): the same sums, on other ways.
//
//   all_reduce  2⌈log2 n⌉ steps, S bytes up and up to ⌈log2 n⌉·S down through rank 0
//   reduce      the upper half (a root other than 0 gets it from rank 0)      broadcast  the lower half
//   barrier     empty messages up and down
//
// Order of summation: canonical, for any n: own + neighbour, then + the next pair, then + the next four.
#include <bit>

#include "comm/algo/accumulate.h"
#include "comm/algo/builtin.h"

namespace lockstep {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;

struct Kin {
  int parent = -1;            // -1 for rank 0
  std::vector<int> children;  // nearest first
};

Kin kin_of(int index, int n) {
  Kin kin;
  for (int distance = 1; distance < n; distance *= 2) {
    if ((index & distance) != 0) {
      kin.parent = index - distance;
      break;
    }
    if (index + distance < n) kin.children.push_back(index + distance);
  }
  return kin;
}

class Chunks {
 public:
  Chunks(std::byte* data, std::size_t count, std::size_t element)
      : data_(data),
        bytes_(count * element),
        count_(std::max<std::size_t>(1, (bytes_ + kChunkBytes - 1) / kChunkBytes)) {}
  std::size_t count() const { return count_; }
  std::span<std::byte> operator[](std::size_t c) const {
    const std::size_t begin = std::min(c * kChunkBytes, bytes_);
    return {data_ + begin, std::min(kChunkBytes, bytes_ - begin)};
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
  std::size_t count_;
};

// A rank's part in the way up.
struct Climb {
  struct Child {
    int rank;
    Arrival arrival;
  };
  std::vector<Child> children;  // in the order in which their sums are added
  int parent = -1;              // -1 for the root
};

Climb climb_of(int rank, const std::vector<Merge>& tree) {
  Climb climb;
  for (const Merge& merge : tree) {
    if (merge.into == rank)
      climb.children.push_back({merge.from, merge.into_is_left ? Arrival::fold_after : Arrival::fold_before});
    if (merge.from == rank) climb.parent = merge.into;
  }
  return climb;
}

// The tree of this call, and its root.
class Shapes {
 public:
  explicit Shapes(const Stage& stage)
      : tree_(stage.routes != nullptr ? stage.routes->tree : plain_routes(stage.size()).tree) {}
  const std::vector<Merge>& merges() const { return tree_; }
  int root() const { return tree_.empty() ? 0 : tree_.back().into; }

 private:
  std::vector<Merge> tree_;
};

// Sums to the tree's root. A chunk goes up while the next one comes in from the first child.
void go_up(Team& team, const std::vector<Merge>& tree, const Chunks& chunks,
           const kernel::Reduction& reduction) {
  const Climb climb = climb_of(team.me(), tree);
  for (std::size_t c = 0; c < chunks.count(); ++c) {
    for (std::size_t i = 0; i < climb.children.size(); ++i) {
      const auto [child, arrival] = climb.children[i];
      const bool also_send = i == 0 && c > 0 && climb.parent >= 0;
      if (also_send)
        team.swap(climb.parent, chunks[c - 1], child, chunks[c], arrival, reduction);
      else
        team.recv(child, chunks[c], arrival, reduction);
    }
    if (climb.parent >= 0 && climb.children.empty()) team.send(climb.parent, chunks[c], reduction);
  }
  if (climb.parent >= 0 && !climb.children.empty())
    team.send(climb.parent, chunks[chunks.count() - 1], reduction);
}

// One rank's part in the way down: who gives, and to whom it goes on, those with the most to pass on first.
void go_down(Channel& channel, int parent, const std::vector<int>& children, const Chunks& chunks,
             const kernel::Reduction& reduction) {
  std::vector<Outgoing> sends;
  for (std::size_t c = 0; c <= chunks.count(); ++c) {
    sends.clear();
    if (c > 0)
      for (int child : children) sends.push_back({child, chunks[c - 1]});
    if (parent >= 0 && c < chunks.count()) {
      const Incoming recv{parent, chunks[c]};
      channel.exchange(sends, {&recv, 1}, reduction);
    } else {
      channel.exchange(sends, {}, reduction);
    }
  }
}

// The way up, backwards.
void return_down(Channel& channel, const std::vector<Merge>& tree, const Chunks& chunks,
                 const kernel::Reduction& reduction) {
  const Climb climb = climb_of(channel.rank(), tree);
  std::vector<int> children;
  for (auto child = climb.children.rbegin(); child != climb.children.rend(); ++child)
    children.push_back(child->rank);
  go_down(channel, climb.parent, children, chunks, reduction);
}

// Copies root's data to all: the plain tree, turned so that root is its index 0.
void broadcast(Stage& stage) {
  const int n = stage.size();
  const int root = stage.call.root;
  const Kin kin = kin_of((stage.rank() - root + n) % n, n);
  const auto rank_of = [&](int index) { return (index + root) % n; };
  std::vector<int> children;
  for (auto child = kin.children.rbegin(); child != kin.children.rend(); ++child)
    children.push_back(rank_of(*child));
  go_down(stage.channel(), kin.parent < 0 ? -1 : rank_of(kin.parent), children,
          Chunks(stage.out(), stage.call.count, stage.element()), stage.reduction());
}

void reduce(Stage& stage) {
  const int root = stage.call.root;
  const Range all{0, stage.call.count};
  const Accumulator sum(stage, stage.rank() == root ? stage.out() : nullptr);
  Team team = Team::whole(stage.channel());
  const Shapes shapes(stage);
  go_up(team, shapes.merges(), Chunks(sum.data(), all.count(), sum.element()), sum.reduction());
  if (const int top = shapes.root(); root != top) {
    if (stage.rank() == top) team.send(root, sum.bytes(all), sum.reduction());
    if (stage.rank() == root) team.recv(top, sum.bytes(all), Arrival::store, sum.reduction());
  }
  if (stage.rank() == root) sum.finish(all);
}

void all_reduce(Stage& stage) {
  const Accumulator sum(stage, stage.out());
  Team team = Team::whole(stage.channel());
  const Shapes shapes(stage);
  go_up(team, shapes.merges(), Chunks(sum.data(), stage.call.count, sum.element()), sum.reduction());
  if (stage.rank() == shapes.root()) sum.finish({0, stage.call.count});
  return_down(stage.channel(), shapes.merges(), Chunks(sum.data(), stage.call.count, sum.element()),
              sum.reduction());
}

void barrier(Stage& stage) {
  // A byte each way: an empty message would not wait.
  std::byte token{};
  const kernel::Reduction none{DType::u8, ReduceOp::max, 1};
  Team team = Team::whole(stage.channel());
  const Shapes shapes(stage);
  go_up(team, shapes.merges(), Chunks(&token, 1, 1), none);
  return_down(stage.channel(), shapes.merges(), Chunks(&token, 1, 1), none);
}

class Tree final : public Algorithm {
 public:
  std::string_view name() const override { return "tree"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce || what == Collective::broadcast ||
           what == Collective::barrier;
  }
  Needs needs() const override { return {}; }
  Cost cost(const CallShape& shape) const override {
    const double depth = std::bit_width(static_cast<unsigned>(shape.ranks - 1));
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce:
        return {.messages = 2 * depth,
                .sent_bytes = (depth + 1) * s,
                .reduced_bytes = 3 * depth * s,
                .wire_s = shape.wires == nullptr ? 0 : on_wires(shape)};
      case Collective::reduce: return {.messages = depth, .sent_bytes = s, .reduced_bytes = 3 * depth * s};
      case Collective::broadcast: return {.messages = depth, .sent_bytes = depth * s};
      default: return {.messages = 2 * depth};
    }
  }
  void run(Stage& stage) const override {
    switch (stage.call.what) {
      case Collective::all_reduce: return all_reduce(stage);
      case Collective::reduce: return reduce(stage);
      case Collective::broadcast: return broadcast(stage);
      default: return barrier(stage);
    }
  }

 private:
  // Chunks follow each other: what counts is the way of the first one, and the rank that has the most to do.
  static double on_wires(const CallShape& shape) {
    const auto& tree = shape.routes->tree;
    const auto bytes = static_cast<double>(shape.bytes);
    std::vector<double> busy(static_cast<std::size_t>(shape.ranks), 0);
    for (const Merge& merge : tree)
      busy[static_cast<std::size_t>(merge.into)] += shape.wires->seconds(merge.from, merge.into, bytes) -
                                                    shape.wires->seconds(merge.from, merge.into, 0);
    const double first = tree_time(tree, shape.ranks, [&](int from, int to) {
      return shape.wires->seconds(from, to, std::min<double>(bytes, kChunkBytes));
    });
    return 2 * (first + *std::max_element(busy.begin(), busy.end()));
  }
};

const Tree kInstance;

}  // namespace

const Algorithm& kTree = kInstance;

}  // namespace lockstep
