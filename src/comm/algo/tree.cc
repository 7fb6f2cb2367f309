// tree: a binomial tree, pipelined in chunks. Rank r takes from r+1, r+2, r+4 … (as long as that bit of r
// is zero), in that order, and gives to r minus its lowest set bit; rank 0 ends with the whole sum, and
// results go down the same way.
//
//   all_reduce  2⌈log2 n⌉ steps, S bytes up and up to ⌈log2 n⌉·S down through rank 0
//   reduce      the upper half (a root other than 0 gets it from rank 0)      broadcast  the lower half
//   barrier     empty messages up and down
//
// Order of summation: canonical, for any n: own + neighbour, then + the next pair, then + the next four.
#include <bit>

#include "comm/algo/accumulate.h"

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

// Sums to index 0. A chunk goes up while the next one comes in from the first child.
void go_up(Team& team, const Chunks& chunks, const kernel::Reduction& reduction) {
  const Kin kin = kin_of(team.me(), team.size());
  for (std::size_t c = 0; c < chunks.count(); ++c) {
    for (std::size_t i = 0; i < kin.children.size(); ++i) {
      const bool also_send = i == 0 && c > 0 && kin.parent >= 0;
      if (also_send)
        team.swap(kin.parent, chunks[c - 1], kin.children[i], chunks[c], Arrival::fold_after, reduction);
      else
        team.recv(kin.children[i], chunks[c], Arrival::fold_after, reduction);
    }
    if (kin.parent >= 0 && kin.children.empty()) team.send(kin.parent, chunks[c], reduction);
  }
  if (kin.parent >= 0 && !kin.children.empty()) team.send(kin.parent, chunks[chunks.count() - 1], reduction);
}

// Copies root's data to all: the same tree, turned so that root is its index 0.
void go_down(Channel& channel, int root, const Chunks& chunks, const kernel::Reduction& reduction) {
  const int n = channel.size();
  const Kin kin = kin_of((channel.rank() - root + n) % n, n);
  const auto rank_of = [&](int index) { return (index + root) % n; };
  std::vector<Outgoing> sends;
  for (std::size_t c = 0; c <= chunks.count(); ++c) {
    sends.clear();
    if (c > 0)  // furthest first: it has the most to pass on
      for (auto child = kin.children.rbegin(); child != kin.children.rend(); ++child)
        sends.push_back({rank_of(*child), chunks[c - 1]});
    if (kin.parent >= 0 && c < chunks.count()) {
      const Incoming recv{rank_of(kin.parent), chunks[c]};
      channel.exchange(sends, {&recv, 1}, reduction);
    } else {
      channel.exchange(sends, {}, reduction);
    }
  }
}

void reduce(Stage& stage) {
  const int root = stage.call.root;
  const Range all{0, stage.call.count};
  const Accumulator sum(stage, stage.rank() == root ? stage.out() : nullptr);
  Team team = Team::whole(stage.channel);
  go_up(team, Chunks(sum.data(), all.count(), sum.element()), sum.reduction());
  if (root != 0) {
    if (stage.rank() == 0) team.send(root, sum.bytes(all), sum.reduction());
    if (stage.rank() == root) team.recv(0, sum.bytes(all), Arrival::store, sum.reduction());
  }
  if (stage.rank() == root) sum.finish(all);
}

void all_reduce(Stage& stage) {
  const Accumulator sum(stage, stage.out());
  Team team = Team::whole(stage.channel);
  go_up(team, Chunks(sum.data(), stage.call.count, sum.element()), sum.reduction());
  if (stage.rank() == 0) sum.finish({0, stage.call.count});
  go_down(stage.channel, 0, Chunks(stage.out(), stage.call.count, stage.element()), sum.reduction());
}

void barrier(Stage& stage) {
  // A byte each way: an empty message would not wait.
  std::byte token{};
  const kernel::Reduction none{DType::u8, ReduceOp::max, 1};
  Team team = Team::whole(stage.channel);
  go_up(team, Chunks(&token, 1, 1), none);
  go_down(stage.channel, 0, Chunks(&token, 1, 1), none);
}

class Tree final : public Algorithm {
 public:
  std::string_view name() const override { return "tree"; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override {
    return what == Collective::all_reduce || what == Collective::reduce || what == Collective::broadcast ||
           what == Collective::barrier;
  }
  Cost cost(const Shape& shape) const override {
    const double depth = std::bit_width(static_cast<unsigned>(shape.ranks - 1));
    const auto s = static_cast<double>(shape.bytes);
    switch (shape.what) {
      case Collective::all_reduce:
        return {.messages = 2 * depth, .sent_bytes = (depth + 1) * s, .reduced_bytes = 3 * depth * s};
      case Collective::reduce: return {.messages = depth, .sent_bytes = s, .reduced_bytes = 3 * depth * s};
      case Collective::broadcast: return {.messages = depth, .sent_bytes = depth * s};
      default: return {.messages = 2 * depth};
    }
  }
  void run(Stage& stage) const override {
    switch (stage.call.what) {
      case Collective::all_reduce: return all_reduce(stage);
      case Collective::reduce: return reduce(stage);
      case Collective::broadcast:
        return go_down(stage.channel, stage.call.root, Chunks(stage.out(), stage.call.count, stage.element()),
                       stage.reduction());
      default: return barrier(stage);
    }
  }
};

const Tree kInstance;

}  // namespace

const Algorithm& kTree = kInstance;

}  // namespace lockstep
